from __future__ import annotations

import subprocess
import sys
import time

import psutil

CHILD = (
    "import os, sys, time;"
    "from trnrt_router.parent_tie import die_with_parent;"
    "die_with_parent(int(sys.argv[1]));"
    "print(os.getpid(), flush=True); time.sleep(600)"
)
PARENT = (
    "import os, subprocess, sys;"
    f"subprocess.run([sys.executable, '-c', {CHILD!r}, str(os.getpid())])"
)


def test_child_dies_when_its_parent_is_killed():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        child = int(parent.stdout.readline())
        assert psutil.pid_exists(child)
        parent.kill()
        parent.wait()
    deadline = time.monotonic() + 20
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_child_whose_parent_has_died_already_exits():
    ended = subprocess.run(
        [sys.executable, "-c", CHILD, "1"], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 1
    assert "is gone" in ended.stderr
    assert ended.stdout == ""
