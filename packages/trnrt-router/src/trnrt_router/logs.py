"""Log lines of this package's commands: text for people, JSON lines for collectors."""

from __future__ import annotations

import logging
import sys
from enum import StrEnum

import msgspec


class LogFormat(StrEnum):
    """How a log line is written."""

    TEXT = "text"
    JSON = "json"


def configure_logging(log_format: LogFormat, *, level: str = "INFO") -> None:
    """Send this process's log to standard error; called by commands, never by libraries."""
    handler = logging.StreamHandler(sys.stderr)
    if log_format is LogFormat.JSON:
        handler.setFormatter(_JsonFormatter())
    else:
        text = logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")
        handler.setFormatter(text)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)  # of everybody else's libraries
    for package in ("trnrt_router", "trnrt_engine", "trnrt_kernels"):
        logging.getLogger(package).setLevel(level)


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": record.created,
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()
