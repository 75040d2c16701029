"""Inference engine library: scheduler, caches, runner."""

from trnrt_engine.__about__ import __version__

__all__ = ["__version__"]
