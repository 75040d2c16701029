"""Random tensors for an op, made from its spec."""

from __future__ import annotations

import torch
from torch import Tensor

from trnrt_kernels.contract import Argument, DType, KernelSpec, Role

NORMS = {"attn_norm", "ffn_norm", "o_norm", "q_a_norm", "kv_a_norm", "index_k_norm", "norm"}


def random_weights(spec: KernelSpec, sizes: dict[str, int], seed: int = 0) -> dict[str, Tensor]:
    """Weights of an op: matrices scaled by their width, norm weights near one."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for argument in spec.arguments:
        if argument.role is Role.WEIGHT:
            values = torch.randn(shape_of(argument, sizes), generator=generator)
            if argument.name in NORMS:
                values = 1 + 0.1 * values
            elif values.dim() >= 2:
                values = values * values.shape[-1] ** -0.5
            weights[argument.name] = values
    return weights


def empty_caches(
    spec: KernelSpec, sizes: dict[str, int], dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    """Caches of an op, full of NaN: nothing may be read before it is written."""
    return {
        argument.name: torch.full(
            shape_of(argument, sizes),
            float("nan"),
            dtype=torch.float32 if argument.dtype is DType.FLOAT32 else dtype,
        )
        for argument in spec.arguments
        if argument.role is Role.CACHE
    }


def shape_of(argument: Argument, sizes: dict[str, int]) -> tuple[int, ...]:
    """Shape of an argument for sizes by letter."""
    shape = []
    for dim in argument.dims:
        size = 1
        for factor in dim.split("*"):
            size *= int(factor) if factor.isdigit() else sizes[factor]
        shape.append(size)
    return tuple(shape)
