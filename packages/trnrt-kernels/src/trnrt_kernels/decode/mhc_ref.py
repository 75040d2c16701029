"""Reference of the decode `mhc`."""

from __future__ import annotations

from torch import Tensor

from trnrt_kernels.reference import mhc


def mhc_ref(
    streams_BND: Tensor,
    attn_hc_fn: Tensor,
    attn_hc_base: Tensor,
    attn_hc_scale: Tensor,
    rms_norm_eps: float,
    hc_eps: float,
    hc_sinkhorn_iters: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Collapse the streams into a half's input; also its output weights and stream mix."""
    constants = mhc.Constants(rms_norm_eps, hc_eps, hc_sinkhorn_iters)
    return mhc.collapse(streams_BND, attn_hc_fn, attn_hc_base, attn_hc_scale, constants)
