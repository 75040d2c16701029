"""Opens the tiers below the device that a configuration asks for."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from trnrt_engine.cache.bytestore import ByteStore
from trnrt_engine.cache.disk_store import DiskStore
from trnrt_engine.cache.host_store import HostStore
from trnrt_engine.config import EngineConfig

GIB = 2**30


def open_stores(config: EngineConfig) -> dict[str, ByteStore]:
    """Open host and disk store by the names of the tiers; those not asked for are left out.

    Raises:
        CacheRefused, ValueError, OSError: a folder holds something else, another process has it
            with another size, or there is no room.
    """
    stores: dict[str, ByteStore] = {}
    with ExitStack() as opened:
        if config.cache_host_gib:
            folder = None if config.cache_host_dir is None else Path(config.cache_host_dir)
            budget = int(config.cache_host_gib * GIB)
            stores["host"] = HostStore(folder, budget_bytes=budget)
            opened.callback(stores["host"].close)
        if config.cache_disk_dir is not None:
            budget = int(config.cache_disk_gib * GIB)
            stores["disk"] = DiskStore(Path(config.cache_disk_dir), budget)
        opened.pop_all()
    return stores
