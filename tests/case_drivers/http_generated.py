"""Kind `http_generated`: as `http`, with a request too long to write out."""

from case_drivers.http import run

__all__ = ["run"]
