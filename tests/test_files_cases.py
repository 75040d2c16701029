"""The driver of `files` records: each change is seen by each command, and a wrong record fails."""

from pathlib import Path

import pytest

from case_drivers import files, weights
from case_drivers.dispatch import run_record
from case_drivers.files import command_line
from case_drivers.outcome import Status
from support.tiny_checkpoint import TEXT_CONFIG

EXPERT = "model.language_model.layers.1.mlp.experts.3.up_proj.weight"
FLAT = {key: value for key, value in TEXT_CONFIG.items() if key != "linear_attn_config"} | {
    "linear_num_heads": 4,
    "linear_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "linear_lower_bound": -5.0,
}


def record(change, *, command="trnrt verify model MODEL", **expect):
    return {
        "id": "T-1",
        "case": "T",
        "area": "fp8_weights",
        "kind": "files",
        "start_from": "tiny_checkpoint",
        "change": change,
        "command": command,
        "expect": expect,
    }


DAMAGES = [
    ({"delete": "model-00002-of-*.safetensors"}, ["model-00002-of-00002.safetensors is missing"]),
    ({"truncate": {"file": "model-00001-of-00002.safetensors", "bytes": 5000}}, ["truncated"]),
    (
        {"write": {"file": "config.json", "merge": {"model_type": "llama"}}},
        ["llama", "supported families: glm5_next"],
    ),
    (
        {"rename_tensor": {"from": f"{EXPERT}_scale_inv", "to": "model.stray.weight_scale_inv"}},
        [EXPERT, "without its scale", "model.stray.weight_scale_inv"],
    ),
    ({"rename_tensor": [EXPERT, "model.stray.weight"]}, [f"{EXPERT} is missing", "unexpected"]),
]


@pytest.mark.parametrize(("change", "named"), DAMAGES, ids=lambda value: str(value)[:30])
def test_damage_is_named_where_weights_are_loaded(change, named):
    outcome = run_record(record(change, command="trnrt plan MODEL", exit=1, stderr_has=named))
    assert outcome.status is Status.PASS, outcome.reason


def test_serve_refuses_a_damaged_folder_and_says_why():
    change, named = DAMAGES[3]
    served = record(change, command="trnrt serve", starts=False, exit="nonzero", stderr_has=named)
    outcome = run_record(served)
    assert outcome.status is Status.PASS, outcome.reason


def test_serve_starts_on_a_flat_config_and_computes_the_same():
    change = {"write": {"file": "config.json", "json": FLAT}}
    served = record(
        change, command="trnrt serve --model MODEL", starts=True, same_logits_as="tiny_checkpoint"
    )
    outcome = run_record(served)
    assert outcome.status is Status.PASS, outcome.reason


@pytest.mark.parametrize(
    ("change", "expect"),
    [
        ({"delete": "README*"}, {"exit": 0}),  # touches nothing
        ({"shuffle": "*"}, {"exit": 0}),  # unknown change
        ({"delete": "tokenizer.json"}, {"exit": 0}),  # another exit
        ({"delete": "tokenizer.json"}, {"exit": 1, "stderr_has": ["no such words"]}),
        ({"delete": "tokenizer.json"}, {"exit": 1, "starts": True}),
        ({"delete": "tokenizer.json"}, {"exit": 1, "glows": True}),  # unknown expectation
        (
            {"write": {"file": "config.json", "merge": {"text_config": {"swiglu_limit": 0.5}}}},
            {"same_logits_as": "tiny_checkpoint"},
        ),
    ],
)
def test_a_record_that_does_not_hold_fails(change, expect):
    assert run_record(record(change, **expect)).status is Status.FAIL


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("trnrt verify model $MODEL", ["verify", "model", "/m"]),
        ("trnrt serve --model {model} --port 1", ["serve", "--model", "/m", "--port", "1"]),
        (["serve"], ["serve", "--model", "/m"]),
        ("plan", ["plan", "/m"]),
        ("trnrt plan tiny_checkpoint", ["plan", "/m"]),
    ],
)
def test_the_folder_takes_its_place_in_the_command(command, expected):
    assert command_line(command, Path("/m")) == expected


def weight_record(**changes):
    common = {"id": "T-2", "case": "T", "area": "fp8_weights", "kind": "weights"}
    shapes = {"weight_shape": [200, 300], "block": [128, 128], "scale_shape": [2, 3]}
    return common | shapes | {"shard_dim": 0, "tp": 1} | changes


def test_weights_driver_tells_right_from_wrong():
    equal = {"dequant_equals_unsharded": True}
    assert weights.run(weight_record(expect=equal)).status is Status.PASS
    assert weights.run(weight_record(expect=equal, scale_shape=[3, 2])).status is Status.FAIL
    assert weights.run(weight_record(expect={"error_names": ["[2, 3]"]})).status is Status.FAIL
    assert weights.run(weight_record(expect=equal, block=[64, 64])).status is Status.FAIL
    assert weights.run(weight_record(expect=equal, tp=4)).status is Status.NOT_YET


def test_unknown_fixture_fails():
    wrong = record({"delete": "*"}, exit=0) | {"start_from": "huge_checkpoint"}
    assert files.run(wrong).status is Status.FAIL
