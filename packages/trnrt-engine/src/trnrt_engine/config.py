"""How an engine is set up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from trnrt_kernels.serving import OPTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of one engine; those of `trnrt_kernels.serving.OPTIONS` mean what they say there.

    Fields:
        max_waiting: requests taken beyond those that can run at once.
    """

    model_dir: Path
    backend: str = "auto"
    dtype: str = "auto"
    numeric_mode: str = "fast"
    max_num_seqs: int = 12
    prefill_ahead: int = 4
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_decode_stall_ms: int = 500
    max_queue_prefill_s: float = 600.0
    graphs: str = "auto"
    cache_gib: float | None = None
    prefix_cache: str = "on"
    cache_host_gib: float = 0.0
    cache_host_dir: str | None = None
    cache_disk_gib: float = 16.0
    cache_disk_dir: str | None = None
    swap_host_gib: float | None = None
    exact_cache: str = "off"
    max_waiting: int = 256

    def __post_init__(self) -> None:
        for name, option in OPTIONS.items():
            value = getattr(self, name)
            if value is None:
                continue
            try:
                option.type.convert(value, None, None)
            except click.BadParameter as error:
                raise ValueError(f"{name} is {value!r}: {error.message}") from error
        if self.cache_host_dir is not None and not self.cache_host_gib:
            raise ValueError(
                f"cache_host_dir is {self.cache_host_dir!r}, and cache_host_gib, its size, is 0"
            )
        if self.max_waiting < 0:
            raise ValueError(f"max_waiting is {self.max_waiting}, must be at least 0")
