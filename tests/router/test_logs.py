from __future__ import annotations

import json
import logging

import pytest

from trnrt_router.logs import LogFormat, configure_logging


@pytest.fixture(autouse=True)
def restored_logging():
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    yield
    root.handlers[:], level = before
    root.setLevel(level)
    for package in ("trnrt_router", "trnrt_engine", "trnrt_kernels"):
        logging.getLogger(package).setLevel(logging.NOTSET)


def test_json_lines_hold_time_level_and_message(capsys):
    configure_logging(LogFormat.JSON)
    try:
        raise ValueError("no")
    except ValueError:
        logging.getLogger("trnrt_router.x").exception("failed name=%s", "a")
    line = json.loads(capsys.readouterr().err)
    assert line["level"] == "ERROR"
    assert line["logger"] == "trnrt_router.x"
    assert line["message"] == "failed name=a"
    assert "ValueError: no" in line["exception"]


def test_text_shows_ours_from_the_level_on_and_only_warnings_of_others(capsys):
    configure_logging(LogFormat.TEXT, level="INFO")
    logging.getLogger("trnrt_engine").info("ours")
    logging.getLogger("trnrt_engine").debug("too quiet")
    logging.getLogger("httpx").info("a line a request")
    logging.getLogger("httpx").warning("theirs")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == ["INFO ours", "WARNING theirs"]
