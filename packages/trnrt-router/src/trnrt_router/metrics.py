"""Prometheus metrics: what the router counts itself, and what its engines report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from trnrt_router.engine_client import EngineClient, EngineState
from trnrt_router.protocol import HistogramSnapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900)
_ENGINE_GAUGES = {
    "num_running": ("running_requests", "Requests that are computed"),
    "num_waiting": ("waiting_requests", "Requests that wait for a slot"),
    "free_pages": ("free_pages", "Pages no request and no cached prefix holds"),
    "total_pages": ("total_pages", "Pages in all"),
    "cached_pages": ("cached_pages", "Pages of cached prefixes that no request holds"),
    "free_state_slots": ("free_state_slots", "State slots no request and no bundle holds"),
    "total_state_slots": ("total_state_slots", "State slots in all"),
    "num_bundles": ("cached_bundles", "Positions of cached prefixes that can be hit"),
}
_ENGINE_COUNTERS = {
    "steps": ("steps", "Engine steps"),
    "prompt_tokens": ("prompt_tokens", "Prompt tokens computed"),
    "generation_tokens": ("generation_tokens", "Tokens generated"),
    "requests_finished": ("requests_finished", "Requests that ended by themselves"),
    "requests_failed": ("requests_failed", "Requests that ended with an error"),
    "requests_aborted": ("requests_aborted", "Requests whose client left or that were stopped"),
    "stall_overruns": ("stall_overruns", "Chunks that ran beyond the stall budget of streams"),
    "cache_hit_tokens": ("cache_hit_tokens", "Prompt tokens not computed, thanks to a hit"),
    "evicted_pages": ("evicted_pages", "Pages of cached prefixes given up for room"),
    "evicted_bundles": ("evicted_bundles", "Bundles given up for room"),
    "skipped_bundles": ("skipped_bundles", "Bundles wanted and not kept, for want of a slot"),
    "cache_skipped_writes": ("cache_skipped_writes", "Bundles not copied down, for want of room"),
    "cache_failed_writes": ("cache_failed_writes", "Pages and states that a tier did not take"),
    "cache_loads": ("cache_loads", "Bundles asked of the tiers below the device"),
    "cache_late_loads": ("cache_late_loads", "Of these, given up because they took too long"),
    "failed_swaps": ("failed_swaps", "Preempted sequences lost in host memory, computed again"),
    "cache_failed_loads": ("cache_failed_loads", "Of these, missing, damaged or another's"),
}
_LABELLED_COUNTERS = {
    "cache_lookups": (
        "cache_lookups", "Admissions, by what came of the look-up in the prefix cache", "reason",
    ),
    "cache_tier_hit_tokens": (
        "cache_tier_hit_tokens", "Prompt tokens not computed, by where the hit lay", "tier",
    ),
    "cache_bytes_written": (
        "cache_written_bytes", "Copied from the device to a tier below it", "tier",
    ),
    "cache_bytes_loaded": (
        "cache_loaded_bytes", "Copied to the device from a tier below it", "tier",
    ),
    "preemptions": (
        "preemptions", "Sequences whose room was taken for others, by what became of them", "way",
    ),
    "resumes": ("resumes", "Preempted sequences that went on, by how", "way"),
    "swapped_bytes": (
        "swapped_bytes", "Copied to host memory and back for preempted sequences", "direction",
    ),
}  # fmt: skip
_ENGINE_HISTOGRAMS = {
    "queue_s": ("queue_seconds", "Submission to admission"),
    "time_to_first_token_s": ("time_to_first_token_seconds", "Submission to first token"),
    "inter_token_s": ("inter_token_seconds", "Between two tokens of a request"),
    "step_s": ("step_seconds", "Launch to result of a step"),
}


class RouterMetrics:
    """One registry per router, so that several may live in one process."""

    def __init__(self, engines: Sequence[EngineClient]) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "trnrt_requests", "Requests answered", ["endpoint", "status"], registry=registry
        )
        self.running = Gauge(
            "trnrt_running_requests", "Requests not yet answered in full", registry=registry
        )
        self.prompt_tokens = Counter(
            "trnrt_prompt_tokens", "Prompt tokens of finished requests", registry=registry
        )
        self.cached_tokens = Counter(
            "trnrt_cached_prompt_tokens", "Of these, not computed again", registry=registry
        )
        self.replayed_tokens = Counter(
            "trnrt_replayed_prompt_tokens",
            "Prompt tokens computed again though their pages were cached",
            registry=registry,
        )
        self.cache_lookups = Counter(
            "trnrt_cache_lookups",
            "Sequences looked up in the prefix cache, by what came of it and where the hit lay",
            ["reason", "tier"],
            registry=registry,
        )
        self.generation_tokens = Counter(
            "trnrt_generation_tokens", "Tokens of finished requests", registry=registry
        )
        self.time_to_first_token_s = Histogram(
            "trnrt_time_to_first_token_seconds",
            "Request to first token",
            buckets=_SECONDS,
            registry=registry,
        )
        self.request_s = Histogram(
            "trnrt_request_seconds", "Request to end", buckets=_SECONDS, registry=registry
        )
        registry.register(_EngineCollector(engines))

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class _EngineCollector(Collector):
    """Reads the snapshots that engines send with every beat; asks nobody anything."""

    def __init__(self, engines: Sequence[EngineClient]) -> None:
        self._engines = engines

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("trnrt_engine_up", "1 while an engine is ready", labels=["engine"])
        for engine in self._engines:
            up.add_metric([engine.name], float(engine.state is EngineState.READY))
        yield up
        for field, (name, text) in _ENGINE_GAUGES.items():
            gauge = GaugeMetricFamily(f"trnrt_engine_{name}", text, labels=["engine"])
            for engine in self._engines:
                gauge.add_metric([engine.name], getattr(engine.stats, field))
            yield gauge
        for field, (name, text) in _ENGINE_COUNTERS.items():
            counter = CounterMetricFamily(f"trnrt_engine_{name}", text, labels=["engine"])
            for engine in self._engines:
                counter.add_metric([engine.name], getattr(engine.stats, field))
            yield counter
        for field, (name, text, label) in _LABELLED_COUNTERS.items():
            yield self._labelled(field, name, text, label)
        for field, (name, text) in _ENGINE_HISTOGRAMS.items():
            histogram = HistogramMetricFamily(f"trnrt_engine_{name}", text, labels=["engine"])
            for engine in self._engines:
                snapshot: HistogramSnapshot = getattr(engine.stats, field)
                if snapshot.counts:
                    histogram.add_metric([engine.name], _buckets(snapshot), snapshot.total)
            yield histogram

    def _labelled(self, field: str, name: str, text: str, label: str) -> Metric:
        counter = CounterMetricFamily(f"trnrt_engine_{name}", text, labels=["engine", label])
        for engine in self._engines:
            for value, count in getattr(engine.stats, field).items():
                counter.add_metric([engine.name, value], count)
        return counter


def _buckets(snapshot: HistogramSnapshot) -> list[tuple[str, float]]:
    buckets: list[tuple[str, float]] = []
    below = 0
    bounds = (*(f"{bound:g}" for bound in snapshot.bounds), "+Inf")
    for bound, count in zip(bounds, snapshot.counts, strict=True):
        below += count
        buckets.append((bound, below))
    return buckets
