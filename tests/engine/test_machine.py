"""Free memory is what the machine and the container leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from trnrt_engine.machine import free_memory_bytes


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    path = tmp_path / "meminfo"
    path.write_text("MemTotal:       16000 kB\nMemAvailable:    8000 kB\n")
    return path


@pytest.mark.parametrize(
    ("limit", "used", "expected"),
    [("max", "5", 8_192_000), ("5000000", "2000000", 3_000_000), ("100", "200", 0)],
)
def test_containers_limit_counts(
    tmp_path: Path, meminfo: Path, limit: str, used: str, expected: int
) -> None:
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text(f"{used}\n")
    assert free_memory_bytes(meminfo=meminfo, cgroup=tmp_path) == expected


def test_machine_without_containers_says_what_is_available(meminfo: Path, tmp_path: Path) -> None:
    assert free_memory_bytes(meminfo=meminfo, cgroup=tmp_path / "none") == 8_192_000


def test_system_that_does_not_say_is_none(tmp_path: Path) -> None:
    assert free_memory_bytes(meminfo=tmp_path / "none", cgroup=tmp_path) is None


def test_this_machine_has_memory() -> None:
    assert (free_memory_bytes() or 1) > 0
