"""Reference of the prefill `head`."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from trnrt_kernels.reference.elementwise import rms_norm


def head_ref(
    streams_TND: Tensor,
    rows_R: Tensor,
    norm: Tensor,
    lm_head: Tensor,
    rms_norm_eps: float,
) -> Tensor:
    """Float32 logits: average the streams, normalise, project."""
    streams_RND = streams_TND.index_select(0, rows_R)
    hidden_RD = streams_RND.float().mean(dim=1).to(streams_RND.dtype)
    return F.linear(rms_norm(hidden_RD, norm, rms_norm_eps), lm_head).float()
