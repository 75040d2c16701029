"""Reference of the decode `head`."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from trnrt_kernels.reference.elementwise import rms_norm


def head_ref(
    streams_BND: Tensor,
    norm: Tensor,
    lm_head: Tensor,
    rms_norm_eps: float,
) -> Tensor:
    """Float32 logits: average the streams, normalise, project."""
    hidden_BD = streams_BND.float().mean(dim=1).to(streams_BND.dtype)
    return F.linear(rms_norm(hidden_BD, norm, rms_norm_eps), lm_head).float()
