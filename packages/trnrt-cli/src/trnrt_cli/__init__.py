"""The umbrella command `trnrt`, its demo model and doctor."""

from trnrt_cli.__about__ import __version__

__all__ = ["__version__"]
