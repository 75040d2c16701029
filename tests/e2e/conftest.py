from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.served import Served, served
from support.tiny_checkpoint import make_tiny_checkpoint

# Starting engines on a busy machine takes most of it; it counts for the first test of a server.
LIMIT_S = 400


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(LIMIT_S))


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny", tokenizer=True)


@pytest.fixture(scope="session")
def server(checkpoint) -> Iterator[Served]:
    """Two engines and a router, shared by every test that leaves them as they were."""
    with served(checkpoint, "--numeric-mode", "strict") as running:
        yield running


@pytest.fixture(scope="session")
def client(server):
    with server.client() as openai_client:
        yield openai_client
