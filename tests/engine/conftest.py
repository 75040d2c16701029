"""Fixtures of the engine tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from trnrt_kernels.models.glm5_next.model import Model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """A tiny random model in numeric mode strict, on one thread."""
    import torch

    from support.tiny_engine import load_tiny_model

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    folder: Path = tmp_path_factory.mktemp("tiny")
    yield load_tiny_model(folder)
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="session")
def law_models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Model]]:
    """Tiny models by `index_kpool`, on one thread."""
    import torch

    from support.law_box import load_law_model

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("law")
    yield {size: load_law_model(folder / str(size), index_kpool=size) for size in (4, 16)}
    torch.set_num_threads(num_threads)
