"""What a replay found, as one struct and as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from trnrt_engine.simulate.costs import GB
from trnrt_engine.simulate.replay import Replay


class Seconds(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution of seconds."""

    mean: float
    p50: float
    p90: float


class SimulationReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a trace hit in the caches of one engine.

    Fields:
        num_refused: requests that never ran: longer than the window or the pages.
        hit_rate: hit_tokens of prompt_tokens. tier_hit_rate: by the tier the hit came from.
        endless_hit_rate: of a cache that never evicts and can be hit at every multiple of 64.
        lookups: admissions by reason. kv_replayed_tokens: computed again though their pages were
            known.
        modelled_ttft_s, modelled_duration_s: in virtual time, under the assumed costs.
        bytes_written, bytes_loaded: by tier below the device.
        peak_pages, peak_bundles: of the device, most in use at once.
    """

    num_requests: int
    num_refused: int
    num_sessions: int
    prompt_tokens: int
    output_tokens: int
    hit_tokens: int
    hit_rate: float
    tier_hit_tokens: dict[str, int]
    tier_hit_rate: dict[str, float]
    endless_hit_rate: float
    lookups: dict[str, int]
    kv_replayed_tokens: int
    modelled_ttft_s: Seconds
    modelled_duration_s: float
    bytes_written: dict[str, int]
    bytes_loaded: dict[str, int]
    evicted_pages: int
    evicted_bundles: int
    skipped_bundles: int
    late_loads: int
    failed_loads: int
    peak_pages: int
    peak_bundles: int
    num_pages: int
    num_bundle_slots: int


def report_of(replay: Replay) -> SimulationReport:
    """Sum up a replay that has run."""
    ran = [outcome for outcome in replay.outcomes.values() if outcome.match is not None]
    counters, below = replay.cache.counters, replay.cache.tier_counters
    prompt_tokens = sum(outcome.request.num_prompt_tokens for outcome in ran)
    by_tier = {tier: count for tier, count in counters.tier_hit_tokens.items() if tier and count}
    waits_s = sorted(o.first_token_s - o.sent_s for o in ran if not o.refused)
    return SimulationReport(
        num_requests=len(replay.outcomes),
        num_refused=sum(bool(outcome.refused) for outcome in replay.outcomes.values()),
        num_sessions=len({o.request.session for o in replay.outcomes.values()}),
        prompt_tokens=prompt_tokens,
        output_tokens=replay.metrics.generation_tokens,
        hit_tokens=counters.hit_tokens,
        hit_rate=_share(counters.hit_tokens, prompt_tokens),
        tier_hit_tokens=by_tier,
        tier_hit_rate={tier: _share(count, prompt_tokens) for tier, count in by_tier.items()},
        endless_hit_rate=_share(sum(outcome.endless_tokens for outcome in ran), prompt_tokens),
        lookups={reason.value: count for reason, count in counters.lookups.items()},
        kv_replayed_tokens=sum(o.match.replayed for o in ran if o.match is not None),
        modelled_ttft_s=Seconds(
            mean=sum(waits_s) / len(waits_s) if waits_s else 0.0,
            p50=_quantile(waits_s, 0.5),
            p90=_quantile(waits_s, 0.9),
        ),
        modelled_duration_s=replay.now_s,
        bytes_written=_plain(below.bytes_written),
        bytes_loaded=_plain(below.bytes_loaded),
        evicted_pages=counters.evicted_pages,
        evicted_bundles=counters.evicted_bundles,
        skipped_bundles=counters.skipped_bundles,
        late_loads=below.late_loads,
        failed_loads=below.failed_loads,
        peak_pages=max((o.held_pages + o.cached_pages for o in replay.timeline), default=0),
        peak_bundles=max((o.num_bundles for o in replay.timeline), default=0),
        num_pages=replay.sizes.num_pages,
        num_bundle_slots=replay.sizes.num_bundle_slots,
    )


def text_of(report: SimulationReport) -> str:
    """Lay a report out for reading."""
    ttft = report.modelled_ttft_s
    rows = [
        ("requests", f"{report.num_requests:,} of {report.num_sessions:,} sessions"),
        ("refused", f"{report.num_refused:,}"),
        ("prompt tokens", f"{report.prompt_tokens:,}"),
        ("output tokens", f"{report.output_tokens:,}"),
        ("hit", f"{report.hit_rate:.2%} of prompt tokens"),
        *(
            (f"  from {tier}", f"{rate:.2%}, {report.tier_hit_tokens[tier]:,} tokens")
            for tier, rate in report.tier_hit_rate.items()
        ),
        ("  never evicting", f"{report.endless_hit_rate:.2%}"),
        ("computed again", f"{report.kv_replayed_tokens:,} tokens with pages and no states"),
        ("lookups", ", ".join(f"{why} {n:,}" for why, n in sorted(report.lookups.items()))),
        ("evicted", f"{report.evicted_pages:,} pages, {report.evicted_bundles:,} bundles"),
        ("skipped", f"{report.skipped_bundles:,} bundles"),
        *(
            (
                f"{tier} written",
                f"{count / GB:,.1f} GB, read {report.bytes_loaded.get(tier, 0) / GB:,.1f} GB",
            )
            for tier, count in report.bytes_written.items()
        ),
        ("loads given up", f"{report.late_loads:,} late, {report.failed_loads:,} failed"),
        (
            "peak",
            f"{report.peak_pages:,} of {report.num_pages:,} pages, "
            f"{report.peak_bundles:,} of {report.num_bundle_slots:,} bundles",
        ),
        (
            "first token",
            f"mean {ttft.mean:.2f} s, p50 {ttft.p50:.2f} s, p90 {ttft.p90:.2f} s (modelled)",
        ),
        ("duration", f"{report.modelled_duration_s:,.0f} s (modelled)"),
    ]
    return "\n".join(f"{name:<18}{value}" for name, value in rows)


def _plain(counts: Counter[str]) -> dict[str, int]:
    return {tier: count for tier, count in counts.items() if count}


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _quantile(ascending: Sequence[float], share: float) -> float:
    return ascending[min(int(share * len(ascending)), len(ascending) - 1)] if ascending else 0.0
