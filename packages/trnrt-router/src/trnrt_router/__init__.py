"""OpenAI-compatible front of the trnrt inference engine."""

import trnrt_kernels
from trnrt_router.__about__ import __version__

__all__ = ["__version__"]

KERNELS_INTERNAL_API = 2
"""The internal API of trnrt-kernels that this version is written for."""

_found = getattr(trnrt_kernels, "INTERNAL_API", 0)
if _found != KERNELS_INTERNAL_API:
    raise ImportError(
        f"trnrt-router {__version__} is written for internal API {KERNELS_INTERNAL_API} of "
        f"trnrt-kernels, but trnrt-kernels {trnrt_kernels.__version__} has {_found}: install "
        "versions of one release, `pip install -U trnrt-router trnrt-kernels`"
    )
