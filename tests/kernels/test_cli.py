"""The commands print what the registry and the planner know."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from support.released import released_config
from support.tiny_checkpoint import make_tiny_checkpoint
from trnrt_kernels import kernel_check
from trnrt_kernels.cli import commands
from trnrt_kernels.contract import Phase
from trnrt_kernels.registry import KERNELS


def run(*arguments):
    return CliRunner().invoke(commands, list(arguments))


def test_list_has_a_line_for_every_kernel():
    lines = run("kernels", "list").output.splitlines()
    assert len(lines) == 1 + len(KERNELS)
    found = {tuple(line.split()[:2]) for line in lines[1:]}
    assert found == {(str(phase), name) for phase, name in KERNELS}


def test_check_passes_on_the_registry():
    result = run("kernels", "check")
    assert result.exit_code == 0, result.output
    assert result.output.count("ok ") == len(KERNELS)


def test_check_names_a_reference_that_disagrees_with_its_spec(monkeypatch):
    def reference_of_another_shape(phase, name):
        return lambda one, two: None

    monkeypatch.setattr(kernel_check, "get_reference", reference_of_another_shape)
    result = run("kernels", "check")
    assert result.exit_code == 1
    assert "the reference takes ['one', 'two'], the spec says ['streams_BND'" in result.output
    assert f"{len(KERNELS)} kernels are faulty" in result.output


def test_check_names_a_missing_reference(monkeypatch):
    key = (Phase.DECODE, "embed")
    broken = KERNELS | {key: kernel_check.KernelEntry(KERNELS[key].spec, "trnrt_kernels.nowhere")}

    def missing(phase, name):
        if (phase, name) == key:
            raise ImportError("No module named 'trnrt_kernels.nowhere'")
        return original(phase, name)

    original = kernel_check.get_reference
    monkeypatch.setattr(kernel_check, "KERNELS", broken)
    monkeypatch.setattr(kernel_check, "get_reference", missing)
    result = run("kernels", "check")
    assert result.exit_code == 1
    assert "no reference: No module named" in result.output
    assert "1 kernels are faulty: decode embed" in result.output


def test_plan_of_a_folder_prints_every_component_and_the_total(tmp_path):
    make_tiny_checkpoint(tmp_path)
    result = run("plan", str(tmp_path), "--max-num-seqs", "2")
    assert result.exit_code == 0, result.output
    assert result.output.startswith("bfloat16, 2 sequences of at most 4,096 tokens")
    for name in ("weights: experts", "latents", "kda states", "scratch", "total"):
        assert name in result.output


def test_plan_of_a_config_alone_needs_no_weights(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(released_config()))
    one = ("--max-num-seqs", "1", "--prefill-ahead", "0")
    facts = json.loads(run("plan", str(tmp_path), *one, "--json").output)
    assert facts["bytes"]["weights: embed"] == 1_268_776_960
    assert facts["bytes"]["kda states"] == 142_606_336
    assert facts["total_bytes"] == sum(facts["bytes"].values())
    assert facts["cached_tokens"] == 1_048_576


def test_plan_that_does_not_fit_says_what_to_change(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(released_config()))
    result = run("plan", str(tmp_path), "--cache-gib", "1")
    assert result.exit_code == 1
    assert "raise --cache-gib or lower --max-model-len" in result.output


@pytest.mark.parametrize("model", ["/nowhere", "unheard-of"])
def test_plan_of_nothing_names_the_model(model):
    result = run("plan", model)
    assert result.exit_code == 1
    assert f"no model folder '{model}'" in result.output


def test_help_and_list_import_no_torch():
    script = (
        "import sys\n"
        "from trnrt_kernels.cli import commands\n"
        "for words in (['--help'], ['plan', '--help'], ['kernels', 'list']):\n"
        "    commands(words, standalone_mode=False)\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=60)
