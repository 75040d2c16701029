from __future__ import annotations

import socket
import subprocess
import sys

import pytest
from click.testing import CliRunner

from trnrt_router import cli, launch
from trnrt_router.cli import commands
from trnrt_router.errors import ConfigError

HEAVY = ("torch", "litestar", "uvicorn", "httpx", "tokenizers", "trnrt_engine")


@pytest.fixture
def launched(monkeypatch):
    """Catch what `serve` would have launched."""
    calls = []
    monkeypatch.setattr(launch, "launch_serve", lambda **settings: calls.append(settings) or 0)
    return calls


def invoke(*arguments: str, **environment: str):
    return CliRunner().invoke(commands, arguments, env=environment)


@pytest.mark.parametrize("command", [(), ("serve",), ("router",), ("engine",)])
def test_help_imports_nothing_heavy(command):
    program = (
        "import sys; from trnrt_router.cli import commands;"
        f"commands([*{command!r}, '--help'], standalone_mode=False);"
        f"sys.exit(str([name for name in {HEAVY!r} if name in sys.modules]))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100
    )
    assert ended.stderr.strip() == "[]"


def test_flag_beats_environment_beats_file_beats_default(launched, tmp_path):
    file = tmp_path / "serve.toml"
    file.write_text('model = "m"\nengines = 3\nport = 1111\nmax-num-seqs = 4\n')
    result = invoke(
        "serve", "--config", str(file), "--port", "3333", TRNRT_PORT="2222", TRNRT_ENGINES="5"
    )
    assert result.exit_code == 0, result.output
    [settings] = launched
    assert settings["model"] == "m"
    assert settings["port"] == 3333
    assert settings["engines"] == 5
    assert settings["engine_settings"]["max_num_seqs"] == 4
    assert settings["grace_s"] == 30.0


@pytest.mark.parametrize(
    "arguments",
    [
        ("--engines", "0"),
        ("--port", "70000"),
        ("--backend", "gpu"),
        ("--max-num-seqs", "none"),
        ("--grace-s", "-1"),
        ("--grace-s", "nan"),
        ("--keepalive-s", "inf"),
        ("--no-such-flag",),
    ],
)
def test_bad_value_is_a_usage_error(launched, arguments):
    result = invoke("serve", "--model", "m", *arguments)
    assert result.exit_code == 2
    assert arguments[0] in result.output
    assert launched == []


@pytest.mark.parametrize("url", ["foo", "http://:80", "http://[::1", "http://h:x", "unix:e.sock"])
def test_address_that_is_none_is_a_usage_error(monkeypatch, url):
    monkeypatch.setattr(launch, "launch_router", lambda **settings: 0)
    for good in ("http://127.0.0.1:8100", "https://engine", "http://[::1]:1", "unix:/tmp/e.sock"):
        assert invoke("router", "--model", "m", "--engine-url", good).exit_code == 0
    result = invoke("router", "--model", "m", "--engine-url", url)
    assert result.exit_code == 2
    assert url in result.output


def test_unknown_name_in_the_file_is_an_error(launched, tmp_path):
    file = tmp_path / "serve.toml"
    file.write_text('model = "m"\nspeed = "fast"\n')
    result = invoke("serve", "--config", str(file))
    assert result.exit_code == 2
    assert "speed" in result.output


def test_missing_engine_package_is_named_with_its_install_command(launched, monkeypatch):
    monkeypatch.setattr(cli, "find_spec", lambda name: None)
    for command in ("serve", "engine"):
        result = invoke(command, "--model", "m")
        assert result.exit_code == 1
        assert "pip install 'trnrt-router[engine]'" in result.output


def test_missing_model_folder_is_named():
    result = invoke("serve", "--model", "/no/such/folder")
    assert result.exit_code == 1
    assert "/no/such/folder" in result.output


def test_what_stops_a_launch_is_said_plainly(monkeypatch):
    def fail(**_settings):
        raise ConfigError("cannot listen on 127.0.0.1:80: Permission denied")

    monkeypatch.setattr(launch, "launch_serve", fail)
    result = invoke("serve", "--model", "m")
    assert result.exit_code == 1
    assert result.output == "Error: cannot listen on 127.0.0.1:80: Permission denied\n"


def test_port_in_use_stops_the_start_before_anything_is_loaded():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = invoke("serve", "--model", "demo", "--port", port)
    assert result.exit_code == 1
    assert port in result.output
