"""What the machine has to give."""

from __future__ import annotations

from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def free_memory_bytes(*, meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int | None:
    """Return the memory a process can still take, the container's limit included.

    Returns:
        Bytes; None where the system does not say.
    """
    rooms = [room for room in (_available(meminfo), _cgroup_room(cgroup)) if room is not None]
    return min(rooms, default=None)


def _available(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None


def _cgroup_room(cgroup: Path) -> int | None:
    try:
        limit = (cgroup / "memory.max").read_text(encoding="ascii").strip()
        used = (cgroup / "memory.current").read_text(encoding="ascii").strip()
    except OSError:
        return None
    return None if limit == "max" else max(int(limit) - int(used), 0)
