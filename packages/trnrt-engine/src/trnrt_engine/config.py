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
        prefix_cache: whether prompts reuse what earlier ones computed.
    """

    model_dir: Path
    backend: str = "auto"
    dtype: str = "auto"
    numeric_mode: str = "fast"
    max_num_seqs: int = 12
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    graphs: str = "auto"
    cache_gib: float | None = None
    max_waiting: int = 256
    prefix_cache: bool = True

    def __post_init__(self) -> None:
        for name, option in OPTIONS.items():
            value = getattr(self, name)
            if value is None:
                continue
            try:
                option.type.convert(value, None, None)
            except click.BadParameter as error:
                raise ValueError(f"{name} is {value!r}: {error.message}") from error
        if self.max_waiting < 0:
            raise ValueError(f"max_waiting is {self.max_waiting}, must be at least 0")
