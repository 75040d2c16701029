"""Offline graph compiler for the trnrt inference engine."""

from trnrt_compile.__about__ import __version__

__all__ = ["__version__"]
