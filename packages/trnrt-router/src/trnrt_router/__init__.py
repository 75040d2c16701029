"""OpenAI-compatible front of the trnrt inference engine."""

from trnrt_router.__about__ import __version__

__all__ = ["__version__"]
