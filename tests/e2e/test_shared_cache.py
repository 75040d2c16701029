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
def test_a_killed_engines_prefix_is_hit_in_the_other(checkpoint, monkeypatch) -> None:
    # A socket's path is short, a test's folder is not.
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        check_sharing(checkpoint, Path(folder))


def check_sharing(checkpoint: Path, temporary: Path) -> None:
    ask = {
        "model": "glm",
        "messages": [{"role": "user", "content": WORDS}],
        "max_tokens": 48,  # steps enough for the copies that run beside them
        "temperature": 0.0,
        "extra_body": {"session_id": "wanderer", "ignore_eos": True},
    }
    flags = ("--numeric-mode", "strict", "--cache-host-gib", "0.0625")
    with served(checkpoint, *flags) as server:
        assert list(temporary.glob("trnrt-*/host-cache"))
        completions = server.client().chat.completions.with_raw_response
        first = completions.create(**ask)
        home = first.headers["x-trnrt-engine"]
        os.kill(server.engine_pids()[home], signal.SIGKILL)
        again = completions.create(**ask)
        assert again.headers["x-trnrt-engine"] != home
        assert "tier=host" in again.headers["x-trnrt-cache"]
        assert again.parse().choices[0].message == first.parse().choices[0].message
    assert list(temporary.glob("trnrt-*")) == []
