"""Missing graphs: refused, told once, or not looked at."""

from __future__ import annotations

import logging

import pytest

from trnrt_engine.errors import GraphMissing
from trnrt_engine.graphs import check_graphs
from trnrt_kernels.manifest import Bucket, GraphKey


def keys_of(count: int) -> list[GraphKey]:
    return [
        GraphKey(
            family="glm5_next",
            segment="kda",
            dims={"hidden_size": 64},
            bucket=Bucket(phase="decode", rows=rows, context=512),
            target="cpu",
            numeric_mode="fast",
            dtype="float32",
            cache_dtypes={},
            weight_form="tensor",
            tp=1,
            cp=1,
            lnc=1,
            sources="0" * 64,
        )
        for rows in range(1, count + 1)
    ]


def test_compiled_refuses_and_names_graphs_and_command() -> None:
    with pytest.raises(
        GraphMissing, match=r"7 compiled graphs are missing: kda decode rows=1 "
    ) as refusal:
        check_graphs("compiled", keys_of(7))
    assert "and 2 more" in str(refusal.value)
    assert "`trnrt compile`" in str(refusal.value)


def test_auto_warns_once_and_names_the_command(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        check_graphs("auto", keys_of(7))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "`trnrt compile`" in record.getMessage()


@pytest.mark.parametrize("mode", ["auto", "compiled"])
def test_nothing_missing_is_nothing_to_say(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    check_graphs(mode, [])
    assert caplog.records == []


def test_eager_looks_at_nothing(caplog: pytest.LogCaptureFixture) -> None:
    check_graphs("eager", keys_of(1))
    assert caplog.records == []
