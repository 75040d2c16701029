"""FP8 e4m3 weights with one float32 scale per 128 x 128 block.

The checkpoint calls the scale `weight_scale_inv`, but it multiplies:
`W[i, j] = codes[i, j] * scales[i // 128, j // 128]`. The last block of a dimension may be partial.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 128
E4M3FN_MAX = 448.0
# Trainium2 reads e4m3 with infinities: the fn codes above this value are not numbers there.
TRN2_E4M3_MAX = 240.0


def scale_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the block scales of a matrix of `shape`."""
    return tuple(-(-size // BLOCK) for size in shape)


def dequantise_blocks(codes_RC: Tensor, scales: Tensor, *, out_RC: Tensor) -> Tensor:
    """Write `codes * scale of their block` into `out_RC` and return it.

    Works on one row of blocks at a time, so that the temporary is 128 rows of float32.

    Args:
        codes_RC: float8_e4m3fn.
        scales: float32, `scale_shape(codes_RC.shape)`.
        out_RC: written; any float dtype, rounded once from the float32 product.

    Raises:
        ValueError: the shapes do not belong together.
    """
    if tuple(scales.shape) != scale_shape(tuple(codes_RC.shape)):
        raise ValueError(
            f"scales of shape {list(scales.shape)} do not fit codes of shape "
            f"{list(codes_RC.shape)}: must be {list(scale_shape(tuple(codes_RC.shape)))}"
        )
    num_columns = codes_RC.shape[1]
    for block_row in range(scales.shape[0]):
        rows = slice(block_row * BLOCK, (block_row + 1) * BLOCK)
        scale_C = scales[block_row].repeat_interleave(BLOCK)[:num_columns]
        out_RC[rows] = codes_RC[rows].float() * scale_C
    return out_RC


def quantise_blocks(weight_RC: Tensor) -> tuple[Tensor, Tensor]:
    """Round a matrix to FP8 codes and block scales so that each block uses the whole range.

    Returns:
        Codes [R, C], float8_e4m3fn, and scales, float32; an all-zero block has scale 1.

    Raises:
        ValueError: a value is not finite.
    """
    import torch

    if not bool(weight_RC.isfinite().all()):
        raise ValueError("cannot quantise a matrix with values that are not finite")
    num_rows, num_columns = weight_RC.shape
    grid = scale_shape((num_rows, num_columns))
    padded = weight_RC.new_zeros(grid[0] * BLOCK, grid[1] * BLOCK, dtype=torch.float32)
    padded[:num_rows, :num_columns] = weight_RC
    blocks = padded.view(grid[0], BLOCK, grid[1], BLOCK)
    largest = blocks.abs().amax(dim=(1, 3))
    scales = torch.where(largest > 0, largest / E4M3FN_MAX, torch.ones_like(largest))
    scaled = (blocks / scales[:, None, :, None]).clamp(-E4M3FN_MAX, E4M3FN_MAX)
    codes = scaled.view_as(padded)[:num_rows, :num_columns].to(torch.float8_e4m3fn)
    return codes.contiguous(), scales
