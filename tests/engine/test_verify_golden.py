"""`trnrt verify golden`: the five golden cases hold, and a model that is wrong does not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from trnrt_engine.cli import verify
from trnrt_engine.golden import EXACT, VALUES, compare, count_wrong, token_positions
from trnrt_engine.verify_golden import verify_golden

GOLDEN = Path(__file__).parents[1] / "golden" / "glm5_next"
CASES = ("kpool4", "kpool16", "shared_indexer", "long_group", "fp8_block")


@pytest.mark.parametrize("case", CASES)
def test_golden_case_holds(case: str) -> None:
    checks = list(verify_golden(GOLDEN / case))
    assert len(checks) == 23
    assert [f"{c.quantity}: {c.error}" for c in checks if not c.holds] == []


def test_fast_mode_holds_too() -> None:
    result = CliRunner().invoke(
        verify, ["golden", str(GOLDEN / "shared_indexer"), "--numeric-mode", "fast"]
    )
    assert result.exit_code == 0, result.output
    assert "all quantities hold" in result.output


def test_a_changed_weight_is_reported_and_fails(tmp_path: Path) -> None:
    folder = tmp_path / "wrong"
    shutil.copytree(GOLDEN / "shared_indexer", folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.language_model.layers.4.self_attn.indexer.k_norm.bias"] += 1.0
    save_file(tensors, folder / "model.safetensors")
    result = CliRunner().invoke(verify, ["golden", str(folder)])
    assert result.exit_code == 1
    assert "FAIL  index keys" in result.output
    assert "ok    index gates" in result.output
    assert "out of tolerance" in result.output


def test_a_folder_without_golden_data_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(verify, ["golden", str(tmp_path)])
    assert result.exit_code == 1
    assert "holds no golden data" in result.output


def test_meta_without_a_split_is_named(tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "kpool4" / "golden.safetensors", tmp_path)
    (tmp_path / "meta.json").write_text(json.dumps({"T": 1}))
    result = CliRunner().invoke(verify, ["golden", str(tmp_path)])
    assert result.exit_code == 1
    assert "'split'" in result.output


def test_nan_never_holds() -> None:
    nan = torch.tensor([1.0, float("nan")])
    worst = compare("x", {"a": (nan, torch.ones(2)), "b": (torch.ones(1), torch.ones(1))}, VALUES)
    assert not worst.holds
    assert worst.where == "a"


def test_one_wrong_item_does_not_hold() -> None:
    assert not count_wrong("ids", {"layer 1": 0, "layer 3": 1}).holds
    assert count_wrong("ids", {"layer 1": 0}).tolerance is EXACT


def test_positions_of_a_selection_include_the_open_pool() -> None:
    pools = torch.tensor([[0, 2, -1], [-1, -1, -1]])
    positions = token_positions(pools, torch.tensor([13, 3]), 4)
    assert set(positions[0].tolist()) - {-1} == {0, 1, 2, 3, 8, 9, 10, 11, 12, 13}
    assert set(positions[1].tolist()) == {-1}  # position 3 completes its pool: no tail
