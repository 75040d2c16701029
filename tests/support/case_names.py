"""Names of parametrised cases that are the same in every process, as parallel workers need."""

from __future__ import annotations


def spelled(value: object) -> str:
    """Name a value by how it is written; a set is written in another order in every process."""
    return repr(sorted(value) if isinstance(value, set | frozenset) else value)[:60]
