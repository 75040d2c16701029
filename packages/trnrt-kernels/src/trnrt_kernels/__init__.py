"""Model steps, kernels and references of the trnrt inference engine."""

from trnrt_kernels.__about__ import __version__

__all__ = ["__version__"]
