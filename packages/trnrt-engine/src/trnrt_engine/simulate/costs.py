"""What steps and copies are taken to cost; assumptions, not measurements."""

from __future__ import annotations

from dataclasses import dataclass, fields

from trnrt_engine.plan import SchedulerOutput

GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """A step costs a constant and so much per token; a copy so much per byte.

    The defaults lie near what is published of one engine of the released model: a prompt of 1M
    tokens in about three minutes, decode steps of 17, 24 and 30 ms at 4, 8 and 12 sequences.

    Fields:
        prefill_ms: of each chunk, beside prefill_us_per_token; context_us_per_token for each
            thousand tokens before it.
        decode_ms: of each decode step, beside decode_ms_per_seq.
        host_gb_per_s, disk_gb_per_s: of one copy thread, each way.
    """

    prefill_ms: float = 10.0
    prefill_us_per_token: float = 120.0
    context_us_per_token: float = 0.1
    decode_ms: float = 10.0
    decode_ms_per_seq: float = 1.7
    host_gb_per_s: float = 10.0
    disk_gb_per_s: float = 2.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value >= 0:
                raise ValueError(f"{field.name} is {value}, must not be negative")
        if not (self.host_gb_per_s and self.disk_gb_per_s):
            raise ValueError("host_gb_per_s and disk_gb_per_s must be above 0")

    def step_s(self, plan: SchedulerOutput) -> float:
        """Return how long a step takes."""
        chunk = plan.prefill
        if chunk is None:
            return (self.decode_ms + self.decode_ms_per_seq * len(plan.decode)) / 1e3
        per_token_us = self.prefill_us_per_token + self.context_us_per_token * chunk.start / 1e3
        return self.prefill_ms / 1e3 + len(chunk.token_ids) * per_token_us / 1e6

    def copy_s(self, tier: str, num_bytes: int) -> float:
        """Return how long a copy to or from a tier below the device takes."""
        gb_per_s = self.host_gb_per_s if tier == "host" else self.disk_gb_per_s
        return num_bytes / (gb_per_s * GB)
