"""Kind `http_raw`: as `http`, with a literal body."""

from case_drivers.http import run

__all__ = ["run"]
