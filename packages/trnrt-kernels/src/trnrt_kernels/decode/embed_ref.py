"""Reference of the decode `embed`."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from trnrt_kernels.common.collectives import all_reduce


def embed_ref(
    token_ids_B: Tensor,
    embed: Tensor,
    hc_mult: int,
    group_name: str,
) -> Tensor:
    """Embed tokens and copy them into all streams."""
    x_BD = all_reduce(F.embedding(token_ids_B, embed), group_name)
    return x_BD.unsqueeze(1).repeat(1, hc_mult, 1)
