"""Model steps, kernels and references of the trnrt inference engine."""

from trnrt_kernels.__about__ import INTERNAL_API, __version__

__all__ = ["INTERNAL_API", "__version__"]
