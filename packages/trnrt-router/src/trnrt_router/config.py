"""Settings of the router, and the one place of this package that reads the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trnrt_router.errors import ConfigError

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """How the OpenAI-compatible front behaves.

    Fields:
        model_dir: tokenizer and chat template are read from here.
        served_model_name: the one name clients may ask for.
        keepalive_s: longest silence on a stream before a comment line is sent.
        first_byte_wait_s: a stream's headers wait so long for the first token, so that an engine
            that fails at once is a status code and not an event.
        max_body_bytes: of a request; a million tokens of escaped text must fit.
        max_choices: sequences one request may start (prompts times `n`).
        inline_bytes: larger bodies are tokenized in a thread, beside other requests' streams.
    """

    model_dir: Path
    served_model_name: str
    keepalive_s: float = 15.0
    first_byte_wait_s: float = 0.5
    max_body_bytes: int = 128 * MIB
    max_choices: int = 128
    inline_bytes: int = 8 * 1024

    def __post_init__(self) -> None:
        if not self.served_model_name:
            raise ConfigError("served_model_name is empty")
        for name in ("keepalive_s", "max_body_bytes", "max_choices"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}, must be positive")
        for name in ("first_byte_wait_s", "inline_bytes"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}, must not be negative")


def engine_environment(
    num_engines: int, *, given: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the environment of an engine's process.

    The threads of the box are divided by the number of engines and wait without spinning, unless
    the user has set it otherwise.
    The engine gets its settings as flags; the file behind `TRNRT_CONFIG` is the parent's.
    """
    threads = max(1, len(os.sched_getaffinity(0)) // num_engines)
    inherited = {name: value for name, value in given.items() if name != "TRNRT_CONFIG"}
    # Threads that spin while they wait for each other cost a step threefold on a busy box.
    return {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE", **inherited}


def bound_text_threads() -> None:
    """Keep the tokenizer to one thread per call, before its library is loaded.

    A huge prompt must not take every core from the engines beside the router.
    """
    os.environ.setdefault("RAYON_NUM_THREADS", "1")
