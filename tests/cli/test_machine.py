"""What the doctor says of machines and packages that are not as they should be."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from trnrt_cli import machine
from trnrt_cli.machine import Level


def test_this_environment_has_nothing_wrong() -> None:
    findings = list(machine.check_machine(port=0))
    assert [finding for finding in findings if finding.level is Level.WRONG] == []
    subjects = {finding.subject for finding in findings}
    assert subjects >= {"python", "cores", "memory", "port", "neuron", "torch", "trnrt-kernels"}


def test_old_python_is_wrong() -> None:
    assert machine.check_python((3, 10)).level is Level.WRONG
    assert machine.check_python((3, 13)).level is Level.OK


@pytest.mark.parametrize(
    ("available_gib", "limit", "level", "shown"),
    [
        (16, "max", Level.OK, "16.0 GiB"),
        (2, "max", Level.NOTE, "2.0 GiB"),
        (16, str(3 * machine.GIB), Level.NOTE, "3.0 GiB"),
    ],
    ids=["enough", "small", "container"],
)
def test_memory_is_the_lower_of_machine_and_container(
    tmp_path: Path, available_gib: int, limit: str, level: Level, shown: str
) -> None:
    meminfo, cgroup = tmp_path / "meminfo", tmp_path / "memory.max"
    meminfo.write_text(f"MemTotal: 1 kB\nMemAvailable:   {available_gib * 1024**2} kB\n")
    cgroup.write_text(limit + "\n")
    finding = machine.check_memory(meminfo, cgroup)
    assert (finding.level, shown in finding.message) == (level, True)


def test_memory_that_cannot_be_read_is_a_note(tmp_path: Path) -> None:
    assert machine.check_memory(tmp_path / "none", tmp_path / "none").level is Level.NOTE


def test_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        finding = machine.check_port(taken.getsockname()[1])
    assert finding.level is Level.NOTE
    assert "serve with --port" in finding.message


def test_neuron_devices_are_counted(tmp_path: Path) -> None:
    assert machine.check_neuron(tmp_path).level is Level.NOTE
    for name in ("neuron0", "neuron1", "neuron_other"):
        (tmp_path / name).touch()
    assert machine.check_neuron(tmp_path).message == "2 devices"


@pytest.mark.parametrize(
    ("version", "source", "level"),
    [
        ("2.13.0+cpu", "cuda: Optional[str] = None\n", Level.OK),
        ("2.13.0", "cuda: Optional[str] = '13.0'\nhip = None\n", Level.NOTE),
        ("2.5.1", "cuda = None\n", Level.WRONG),
    ],
    ids=["cpu", "cuda", "old"],
)
def test_torch_build_is_told_apart(version: str, source: str, level: Level) -> None:
    assert machine.judge_torch(version, source).level is level


def test_pin_that_is_not_met_names_both_versions() -> None:
    versions = {"trnrt-engine": "0.1.0", "trnrt-kernels": "0.2.1"}
    problem = machine.unmet_pin("trnrt-engine", ["trnrt-kernels[torch]~=0.1.0"], versions)
    assert problem is not None
    assert "0.1.*" in problem
    assert "0.2.1" in problem
    met = versions | {"trnrt-kernels": "0.1.7"}
    assert machine.unmet_pin("trnrt-engine", ["trnrt-kernels[torch]~=0.1.0"], met) is None


def test_missing_dependency_is_named_and_extras_are_not_asked_for() -> None:
    optional = 'no-such-package>=1; extra == "plot"'
    assert machine.missing_requirement("trnrt-x", ["click>=8", optional]) is None
    problem = machine.missing_requirement("trnrt-x", ["no-such-package>=1"])
    assert problem == "no-such-package is missing: pip install trnrt-x"


def test_package_that_does_not_import_says_why() -> None:
    assert "no_such_module" in (machine.import_problem("no-such-module") or "")
