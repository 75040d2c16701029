"""Two engine processes share what they computed: a killed one's prefixes are hit in the other."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import pytest

from support.served import served

WORDS = "a long story about a fox and a raven who share one piece of cheese. " * 12


@pytest.mark.slow
def test_a_killed_engines_prefix_is_hit_in_the_other(checkpoint) -> None:
    ask = {
        "model": "glm",
        "messages": [{"role": "user", "content": WORDS}],
        "max_tokens": 6,
        "temperature": 0.0,
        "extra_body": {"session_id": "wanderer", "ignore_eos": True},
    }
    flags = ("--numeric-mode", "strict", "--cache-host-gib", "0.0625")
    before = set(Path(tempfile.gettempdir()).glob("trnrt-*"))
    with served(checkpoint, *flags) as server:
        folders = set(Path(tempfile.gettempdir()).glob("trnrt-*")) - before
        completions = server.client().chat.completions.with_raw_response
        first = completions.create(**ask)
        home = first.headers["x-trnrt-engine"]
        os.kill(server.engine_pids()[home], signal.SIGKILL)
        again = completions.create(**ask)
        assert again.headers["x-trnrt-engine"] != home
        assert "tier=host" in again.headers["x-trnrt-cache"]
        assert again.parse().choices[0].message == first.parse().choices[0].message
        assert any((folder / "host-cache").exists() for folder in folders)
    assert not any(folder.exists() for folder in folders)
