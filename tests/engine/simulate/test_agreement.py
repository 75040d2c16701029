"""The simulator counts what the engine counts: the same trace on real steps and real tiers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.tiny_engine import tiny_core
from support.trace_feed import feed
from trnrt_engine.cache.disk_store import DiskStore
from trnrt_engine.cache.host_store import HostStore
from trnrt_engine.simulate.generate import SessionMix, generate
from trnrt_engine.simulate.replay import Replay
from trnrt_engine.simulate.sizes import EngineSizes
from trnrt_kernels.memory_plan import cache_bytes
from trnrt_kernels.serving import ServingShape

if TYPE_CHECKING:
    from trnrt_kernels.models.glm5_next.model import Model

MIX = SessionMix(
    num_sessions=4,
    seed=3,
    num_turns=7.0,
    max_context_tokens=500,
    num_systems=2,
    system_tokens=100,
    sub_system_tokens=70,
    first_tokens=40,
    tool_tokens=40,
    user_tokens=30,
    output_tokens=3,
    tool_pause_s=30.0,  # long enough for every copy
    rewrite_share=0.1,
    sub_agent_share=0.15,
)
PAGE = 64
LANES = 3


@pytest.mark.parametrize(
    ("num_pages", "num_bundle_slots", "host_mib", "disk_mib"),
    [(200, 120, 0, 0), (14, 5, 1, 64)],
    ids=["ample", "scarce with host and disk"],
)
def test_hits_are_those_of_an_engine(
    tiny_model: Model,
    tmp_path: Path,
    num_pages: int,
    num_bundle_slots: int,
    host_mib: int,
    disk_mib: int,
) -> None:
    requests = generate(MIX)
    tiers = {}
    if host_mib:
        tiers["host"] = HostStore(None, budget_bytes=host_mib * 2**20)
    if disk_mib:
        tiers["disk"] = DiskStore(tmp_path / "disk", disk_mib * 2**20)
    core = tiny_core(tiny_model, num_pages=num_pages, num_bundle_slots=num_bundle_slots, **tiers)
    feed(core, requests, num_lanes=LANES)
    engine, below = core.cache.counters, core.cache.tier_counters
    sizes = cache_bytes(tiny_model.config, page_size=PAGE, dtype="float32")
    replay = Replay(
        requests,
        EngineSizes(
            shape=ServingShape.resolve(
                window=512,
                index_kpool=tiny_model.config.index_kpool,
                backend="cpu",
                dtype="float32",
                max_num_seqs=4,
                prefill_ahead=0,
                max_num_batched_tokens=128,
            ),
            num_pages=num_pages,
            num_bundle_slots=num_bundle_slots,
            page_bytes=sizes.page,
            state_bytes=sizes.states_per_slot + sizes.conv_tails_per_slot,
            host_bytes=host_mib * 2**20,
            disk_bytes=disk_mib * 2**20,
        ),
        num_lanes=LANES,
    )
    replay.run()
    core.cache.close()
    counted = replay.cache.counters
    assert engine.hit_tokens > 1000
    for tier in ("device", *tiers):
        assert counted.tier_hit_tokens[tier] == pytest.approx(
            engine.tier_hit_tokens[tier], rel=0.01
        )
    assert {*tiers} <= {tier for tier, tokens in engine.tier_hit_tokens.items() if tokens}
    num_lookups = engine.lookups.total()
    for reason in {*engine.lookups, *counted.lookups}:
        assert abs(counted.lookups[reason] - engine.lookups[reason]) <= 0.01 * num_lookups
    assert counted.evicted_bundles == pytest.approx(engine.evicted_bundles, rel=0.01)
    for tier in tiers:
        simulated = replay.cache.tier_counters
        assert simulated.bytes_loaded[tier] == pytest.approx(below.bytes_loaded[tier], rel=0.01)
        # A write may be skipped when many wait; how fast real threads copy decides which.
        assert simulated.bytes_written[tier] == pytest.approx(below.bytes_written[tier], rel=0.05)
