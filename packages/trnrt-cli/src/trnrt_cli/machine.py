"""What `trnrt doctor` looks at on a machine; each check costs milliseconds and imports nothing."""

from __future__ import annotations

import importlib
import os
import re
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

from trnrt_cli.packages import COMMANDS, INSTALL_SERVE, installed_versions

GIB = 1024**3
MIN_PYTHON = (3, 11)
MIN_TORCH = (2, 6)
MIN_MEMORY_GIB = 4


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: WRONG stops trnrt from working, NOTE is worth knowing."""

    level: Level
    subject: str
    message: str


def check_machine(*, port: int) -> Iterator[Finding]:
    """Yield what there is to say about this machine and the installed packages."""
    yield check_python(sys.version_info[:2])
    yield check_cores()
    yield check_memory(Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max"))
    yield check_port(port)
    yield check_neuron(Path("/dev"))
    yield check_torch()
    yield from check_packages()


def check_python(found: tuple[int, int]) -> Finding:
    spelled = f"{found[0]}.{found[1]}"
    if found < MIN_PYTHON:
        return Finding(Level.WRONG, "python", f"{spelled} is too old, trnrt needs 3.11 or newer")
    return Finding(Level.OK, "python", f"{spelled} at {sys.executable}")


def check_cores() -> Finding:
    cores = len(os.sched_getaffinity(0))
    if cores < 2:
        return Finding(Level.NOTE, "cores", "one core: two engines will share it")
    return Finding(Level.OK, "cores", f"{cores} usable by this process")


def check_memory(meminfo: Path, cgroup_limit: Path) -> Finding:
    """Report the memory available now; a container's limit counts where it is lower."""
    try:
        available_kib = re.search(r"MemAvailable:\s+(\d+) kB", meminfo.read_text())
    except OSError:
        available_kib = None
    if available_kib is None:
        return Finding(Level.NOTE, "memory", "cannot be read on this system")
    gib = int(available_kib[1]) * 1024 / GIB
    limit = cgroup_limit.read_text().strip() if cgroup_limit.exists() else "max"
    if limit.isdigit():
        gib = min(gib, int(limit) / GIB)
    if gib < MIN_MEMORY_GIB:
        return Finding(Level.NOTE, "memory", f"{gib:.1f} GiB available: enough for the demo only")
    return Finding(Level.OK, "memory", f"{gib:.1f} GiB available")


def check_port(port: int) -> Finding:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            reason = f"{port} cannot be used ({error.strerror}): serve with --port N"
            return Finding(Level.NOTE, "port", reason)
    return Finding(Level.OK, "port", f"{port} is free on 127.0.0.1")


def check_neuron(dev: Path) -> Finding:
    devices = len([path for path in dev.glob("neuron*") if path.name[6:].isdigit()])
    if devices == 0:
        return Finding(Level.NOTE, "neuron", "no device: the cpu backend is used")
    return Finding(Level.OK, "neuron", f"{devices} devices")


def check_torch() -> Finding:
    """Tell torch's version and build from its version file, which costs no import of torch."""
    try:
        found = version("torch")
        spec = find_spec("torch")
    except PackageNotFoundError:
        level = Level.WRONG if "trnrt-engine" in installed_versions() else Level.NOTE
        return Finding(level, "torch", f"not installed, engines need it: {INSTALL_SERVE}")
    folder = Path((spec.origin if spec else None) or "").parent
    return judge_torch(found, (folder / "version.py").read_text())


def judge_torch(found: str, version_source: str) -> Finding:
    if tuple(int(part) for part in re.findall(r"\d+", found)[:2]) < MIN_TORCH:
        return Finding(Level.WRONG, "torch", f"{found} is too old, trnrt needs 2.6 or newer")
    if cuda := cuda_version(version_source):
        return Finding(
            Level.NOTE,
            "torch",
            f"{found} is the CUDA {cuda} build: several GB that the cpu backend does not use",
        )
    return Finding(Level.OK, "torch", f"{found}, CPU build")


def cuda_version(version_source: str) -> str | None:
    """Read the assignment to `cuda` in torch/version.py; None in a CPU build."""
    match = re.search(r"^cuda\b[^=\n]*=\s*['\"]([\d.]+)['\"]", version_source, re.MULTILINE)
    return match and match[1]


def check_packages() -> Iterator[Finding]:
    """Report every trnrt package: whether its parts are there, fit each other and import."""
    versions = installed_versions()
    for package, found in versions.items():
        requirements = requires(package) or []
        problem = (
            missing_requirement(package, requirements)
            or unmet_pin(package, requirements, versions)
            or import_problem(package)
        )
        yield Finding(Level.WRONG if problem else Level.OK, package, problem or found)
    for package, install in dict(COMMANDS.values()).items():
        if package not in versions:
            yield Finding(Level.NOTE, package, f"not installed: {install}")


def missing_requirement(package: str, requirements: list[str]) -> str | None:
    """Name the first dependency outside of extras that is not installed."""
    for requirement in requirements:
        name = re.match(r"[\w.-]+", requirement)
        if name is None or "extra ==" in requirement:
            continue
        try:
            version(name[0])
        except PackageNotFoundError:
            return f"{name[0]} is missing: pip install {package}"
    return None


def unmet_pin(package: str, requirements: list[str], versions: dict[str, str]) -> str | None:
    """Compare `~=X.Y.Z` pins on other trnrt packages with what is installed."""
    for requirement in requirements:
        pin = re.match(r"(trnrt-\w+)(?:\[.*?\])?~=(\d+\.\d+)\.\d+", requirement)
        if pin and pin[1] in versions and not versions[pin[1]].startswith(f"{pin[2]}."):
            return (
                f"{versions[package]} needs {pin[1]} {pin[2]}.*, but {versions[pin[1]]} is "
                f"installed: pip install -U {package} {pin[1]}"
            )
    return None


def import_problem(package: str) -> str | None:
    """Import the package itself, which is light and checks the internal API of the kernels."""
    try:
        importlib.import_module(package.replace("-", "_"))
    except ImportError as error:
        return str(error)
    return None
