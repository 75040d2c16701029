"""An engine whose prefix cache would change an answer does not become ready."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.stepped import SteppedCore
from support.tiny_engine import tiny_core
from trnrt_engine.cache.disk_store import DiskStore
from trnrt_engine.cache.host_store import HostStore
from trnrt_engine.core import stats_of
from trnrt_engine.errors import SelfTestFailed
from trnrt_engine.selftest import check_prefix_cache

if TYPE_CHECKING:
    from trnrt_kernels.models.glm5_next.model import Model


def test_all_tiers_are_proved_and_nothing_is_left(tiny_model: Model, tmp_path: Path) -> None:
    host = HostStore(None, budget_bytes=2**24)
    disk = DiskStore(tmp_path / "disk", 2**24)
    core = tiny_core(tiny_model, num_bundle_slots=4, host=host, disk=disk)
    before = stats_of(core)
    started_s = time.monotonic()
    check_prefix_cache(core, is_exact=True)
    assert time.monotonic() - started_s < 20.0
    assert stats_of(core) == before
    assert (host.stats().num_entries, disk.stats().num_entries) == (0, 0)
    assert SteppedCore(core).is_all_free()
    core.cache.close()


def test_a_hit_that_changes_the_answer_is_refused(tiny_model: Model) -> None:
    core = tiny_core(tiny_model, num_bundle_slots=4)
    caches = core.runner.caches
    copy_slot = caches.copy_slot

    def damage(src: int, dst: int) -> None:
        copy_slot(src, dst)
        for layer in caches.layers:
            if "kda_state" in layer:
                layer["kda_state"][dst] *= 1.01

    caches.copy_slot = damage
    for is_exact in (True, False):
        with pytest.raises(SelfTestFailed, match=r"found on device changes the answer"):
            check_prefix_cache(core, is_exact=is_exact)
    assert SteppedCore(core).is_all_free()


def test_a_tier_too_small_for_a_bundle_is_refused(tiny_model: Model) -> None:
    host = HostStore(None, budget_bytes=3 * 4096, block_bytes=64)
    core = tiny_core(tiny_model, num_bundle_slots=4, host=host)
    with pytest.raises(SelfTestFailed, match="should lie on host was found on no tier"):
        check_prefix_cache(core, is_exact=True)
    core.cache.close()
