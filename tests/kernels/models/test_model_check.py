"""A model folder's defects are found without its weights and named in plain words."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from support.tiny_checkpoint import make_tiny_checkpoint
from trnrt_engine.cli import verify
from trnrt_kernels.models.glm5_next.model_check import CONTROL_TOKENS, Level, check_model

SHARD = "model-00002-of-00002.safetensors"


def write_text_files(folder):
    """The smallest tokenizer, template and settings that a server can work with."""
    added = [{"id": 1244 + i, "content": token} for i, token in enumerate(CONTROL_TOKENS)]
    tokenizer = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}}, "added_tokens": added}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m }}{% endfor %}")


@pytest.fixture
def folder(tmp_path):
    make_tiny_checkpoint(tmp_path)
    write_text_files(tmp_path)
    return tmp_path


def wrong(folder):
    return [(f.subject, f.message) for f in check_model(folder) if f.level is Level.WRONG]


def test_sound_folder_has_nothing_wrong(folder):
    findings = list(check_model(folder))
    assert {f.subject for f in findings} == {
        "config",
        "files",
        "tensors",
        "tokenizer",
        "template",
        "generation",
    }
    assert {f.level for f in findings} == {Level.OK}


def edit_json(name, change):
    def apply(folder):
        path = folder / name
        raw = json.loads(path.read_text())
        change(raw)
        path.write_text(json.dumps(raw))

    return apply


def delete(name):
    return lambda folder: (folder / name).unlink()


def write(name, text):
    return lambda folder: (folder / name).write_text(text)


def cut(name):
    def apply(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-100])

    return apply


def drop_half_of_the_index(raw):
    for name in list(raw["weight_map"])[::2]:
        del raw["weight_map"][name]


@pytest.mark.parametrize(
    ("damage", "subject", "named"),
    [
        (delete("config.json"), "config", "config.json"),
        (edit_json("config.json", lambda c: c.update(model_type="x")), "config", "glm5_next"),
        (delete(SHARD), "files", f"shard {SHARD} is missing"),
        (cut(SHARD), "files", f"{SHARD} is truncated"),
        (edit_json("model.safetensors.index.json", drop_half_of_the_index), "files", "not in the"),
        (
            edit_json("config.json", lambda c: c["text_config"].update(hidden_size=128)),
            "tensors",
            "the config asks for",
        ),
        (delete("tokenizer.json"), "tokenizer", "tokenizer.json is missing"),
        (write("tokenizer.json", "{"), "tokenizer", "tokenizer.json is not JSON"),
        (write("tokenizer.json", "{}"), "tokenizer", "no vocabulary"),
        (
            edit_json("tokenizer.json", lambda t: t["added_tokens"].pop(0)),
            "tokenizer",
            "control tokens are missing: <|system|>",
        ),
        (
            edit_json("tokenizer.json", lambda t: t["model"]["vocab"].update(z=5000)),
            "tokenizer",
            "largest id is 5000",
        ),
        (delete("chat_template.jinja"), "template", "no chat_template.jinja"),
        (write("chat_template.jinja", " \n"), "template", "it is empty"),
        (write("chat_template.jinja", "a\n{% if %}"), "template", "line 2"),
        (write("generation_config.json", "["), "generation", "not JSON"),
        (write("generation_config.json", '{"eos_token_id": [9999]}'), "generation", "9999"),
    ],
)
def test_a_defect_is_named(folder, damage, subject, named):
    damage(folder)
    found = wrong(folder)
    assert [name for name, _ in found][:1] == [subject]
    assert any(named in message for _, message in found), found


def test_template_inside_the_tokenizer_config_counts(folder):
    (folder / "chat_template.jinja").unlink()
    write("tokenizer_config.json", '{"chat_template": "{{ messages }}"}')(folder)
    assert wrong(folder) == []
    named = {"chat_template": [{"name": "default", "template": "{{ messages }}"}]}
    write("tokenizer_config.json", json.dumps(named))(folder)
    assert wrong(folder) == []


def test_an_index_with_a_wrong_sum_is_only_a_note(folder):
    edit_json("model.safetensors.index.json", lambda i: i["metadata"].update(total_size=1))(folder)
    notes = [f.message for f in check_model(folder) if f.level is Level.NOTE]
    assert len(notes) == 1
    assert "the index says 1 bytes" in notes[0]


def test_no_folder_is_one_finding(tmp_path):
    assert len(list(check_model(tmp_path / "gone"))) == 1


def test_command_prints_findings_and_exits_by_them(folder):
    sound = CliRunner().invoke(verify, ["model", str(folder)])
    assert sound.exit_code == 0, sound.output
    assert "can be served" in sound.output
    (folder / SHARD).unlink()
    damaged = CliRunner().invoke(verify, ["model", str(folder)])
    assert damaged.exit_code == 1
    assert f"shard {SHARD} is missing" in damaged.output


def test_check_loads_neither_torch_nor_weights(folder):
    script = (
        "import sys, pathlib\n"
        "from trnrt_kernels.models.glm5_next.model_check import check_model\n"
        f"findings = list(check_model(pathlib.Path({str(folder)!r})))\n"
        "assert all(f.level == 'ok' for f in findings), findings\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=60)
