"""Collectives inside ops, named by role as torch's functional collectives are."""

from __future__ import annotations

import torch
from torch import Tensor


def all_reduce(x: Tensor, group_name: str) -> Tensor:
    """Sum a tensor over the ranks of a process group; the empty name is a group of one."""
    if not group_name:
        return x
    collectives = torch.ops._c10d_functional
    reduced: Tensor = collectives.wait_tensor(collectives.all_reduce(x, "sum", group_name))
    return reduced
