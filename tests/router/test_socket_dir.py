from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import pytest

from trnrt_router.socket_dir import private_socket_dir

KILLED = """
import os, signal
from trnrt_router.socket_dir import private_socket_dir
with private_socket_dir() as folder:
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def base(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_folder_is_private_and_gone_at_the_end(base):
    with private_socket_dir() as folder:
        assert folder.parent == base
        assert folder.stat().st_mode & 0o077 == 0
        (folder / "0.sock").touch()
    assert not list(base.iterdir())


def test_folders_of_others_that_run_are_left_alone(base):
    with private_socket_dir() as first, private_socket_dir() as second:
        assert first.is_dir()
        assert second.is_dir()
        assert first != second


def test_folder_of_a_killed_process_goes_with_the_next_start(base):
    environment = {**os.environ, "TMPDIR": str(base)}
    killed = subprocess.run([sys.executable, "-c", KILLED], env=environment, capture_output=True)
    left = killed.stdout.decode().strip()
    assert os.path.isdir(left)
    (base / "trnrt-serve-of-somebody-else").mkdir()
    with private_socket_dir():
        assert not os.path.exists(left)
    assert [path.name for path in base.iterdir()] == ["trnrt-serve-of-somebody-else"]
