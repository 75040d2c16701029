from __future__ import annotations

from pathlib import Path

import pytest

from support.demo_folder import DEMO_DIR
from trnrt_router import model_folder
from trnrt_router.errors import ConfigError, MissingPart
from trnrt_router.model_folder import resolve_model


def test_folder_is_taken_as_it_is(tmp_path):
    assert resolve_model(str(tmp_path)) == tmp_path


def test_shipped_model_is_found_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolve_model("demo") == DEMO_DIR


def test_folder_of_the_same_name_hides_a_shipped_model_only_if_it_is_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    assert resolve_model("demo") == DEMO_DIR
    (tmp_path / "demo" / "config.json").write_text("{}")
    assert resolve_model("demo") == Path("demo")


def test_shipped_model_that_is_not_installed_names_its_install_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(model_folder, "entry_points", lambda group: ())
    with pytest.raises(MissingPart, match="pip install trnrt-cli"):
        resolve_model("demo")


def test_anything_else_is_named_with_what_there_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"'nowhere'.*demo"):
        resolve_model("nowhere")
