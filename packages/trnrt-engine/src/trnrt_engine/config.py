"""How an engine is set up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

GraphsMode = Literal["auto", "compiled", "eager"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of one engine.

    Fields:
        graphs: `compiled` runs compiled graphs or refuses, `eager` never does, `auto` takes
            what is there.
        max_waiting: requests taken beyond those that can run at once.
    """

    model_dir: Path
    graphs: GraphsMode = "auto"
    max_waiting: int = 256

    def __post_init__(self) -> None:
        if self.graphs not in get_args(GraphsMode):
            raise ValueError(
                f"graphs is {self.graphs!r}, must be one of {', '.join(get_args(GraphsMode))}"
            )
        if self.max_waiting < 0:
            raise ValueError(f"max_waiting is {self.max_waiting}, must be at least 0")
