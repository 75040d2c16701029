"""Whether steps run as compiled graphs; nothing is ever compiled here.

The cpu backend of this version runs eagerly and keeps no compiled cache, so every graph a serving
shape needs is missing: `compiled` is refused, `auto` falls back and says so once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from trnrt_engine.errors import GraphMissing
from trnrt_kernels.manifest import GraphKey

logger = logging.getLogger(__name__)

MAX_NAMED = 5
COMPILE_COMMAND = "trnrt compile"


def check_graphs(mode: str, missing: Iterable[GraphKey]) -> None:
    """Hold the graphs that are not there against what was asked for.

    Args:
        mode: `compiled`, `auto` or `eager`.
        missing: needed and not compiled.

    Raises:
        GraphMissing: `compiled`, and some are missing; the message names them and the command.
    """
    if mode == "eager":
        return
    keys = list(missing)
    if not keys:
        return
    named = ", ".join(str(key) for key in keys[:MAX_NAMED])
    rest = f" and {len(keys) - MAX_NAMED} more" if len(keys) > MAX_NAMED else ""
    if mode == "compiled":
        raise GraphMissing(
            f"{len(keys)} compiled graphs are missing: {named}{rest}; make them with "
            f"`{COMPILE_COMMAND}`, or serve with --graphs eager"
        )
    logger.warning(
        "steps run eagerly: no compiled graphs; make them with `%s` graphs=%d",
        COMPILE_COMMAND,
        len(keys),
    )
