"""Reference of the prefill `embed`."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from trnrt_kernels.common.collectives import all_reduce


def embed_ref(
    token_ids_T: Tensor,
    embed: Tensor,
    hc_mult: int,
    group_name: str,
) -> Tensor:
    """Embed tokens and copy them into all streams."""
    x_TD = all_reduce(F.embedding(token_ids_T, embed), group_name)
    return x_TD.unsqueeze(1).repeat(1, hc_mult, 1)
