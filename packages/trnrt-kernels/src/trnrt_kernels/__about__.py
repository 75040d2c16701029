"""Version of trnrt-kernels, and the number of its internal API."""

__version__ = "0.1.0"

INTERNAL_API = 2
"""Raised by one when a change to the modules shared with the other trnrt packages (`models`,
`manifest`, `serving`, `memory_plan`, `sampling`, `backend`) breaks trnrt-engine or trnrt-compile:
both check it at import."""
