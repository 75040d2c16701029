"""Damaged files are refused with the file and the figures, never read as garbage."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from support.tiny_checkpoint import make_tiny_checkpoint
from trnrt_kernels.errors import CheckpointError
from trnrt_kernels.models.checkpoint import open_checkpoint
from trnrt_kernels.models.safetensors_header import read_header

DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32, "F8_E4M3": torch.float8_e4m3fn}


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def write_file(path, header, data=b"\0" * 8, *, header_bytes=None):
    """Write a safetensors file with any header, right or wrong."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    length = len(text) if header_bytes is None else header_bytes
    path.write_bytes(length.to_bytes(8, "little") + text + data)
    return path


@settings(max_examples=40, deadline=None)
@given(
    tensors=st.lists(
        st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 4), max_size=3)),
        min_size=1,
        max_size=6,
    )
)
def test_header_agrees_with_the_safetensors_library(tmp_path_factory, tensors):
    path = tmp_path_factory.mktemp("files") / "model.safetensors"
    values = {
        f"t{i}": torch.zeros(shape).to(DTYPES[dtype]) for i, (dtype, shape) in enumerate(tensors)
    }
    save_file(values, path)
    found = read_header(path)
    assert {name: (e.dtype, list(e.shape)) for name, e in found.items()} == {
        f"t{i}": (dtype, shape) for i, (dtype, shape) in enumerate(tensors)
    }
    ends = [e.offset + e.num_bytes for e in found.values()]
    assert max(ends) == path.stat().st_size


def test_sound_file_is_read(tmp_path):
    header = {"b": entry(), "a": entry("BF16", (3, 1), (8, 14)), "__metadata__": {"format": "pt"}}
    found = read_header(write_file(tmp_path / "m.safetensors", header, b"\0" * 14))
    start = (tmp_path / "m.safetensors").stat().st_size - 14
    assert (found["b"].offset, found["b"].num_bytes) == (start, 8)
    assert (found["a"].offset, found["a"].num_bytes) == (start + 8, 6)


@pytest.mark.parametrize(
    ("header", "data", "header_bytes", "named"),
    [
        ({"a": entry()}, b"\0" * 7, None, "is truncated: the header accounts for"),
        ({"a": entry()}, b"\0" * 9, None, "has bytes no tensor owns"),
        ({"a": entry()}, b"", 10**6, "its header should have 1000000 bytes"),
        ({"a": entry()}, b"", 2**63, "its header should have 9223372036854775808 bytes"),
        (b"{nonsense", b"", None, "the header is not JSON"),
        (b"\xff\xfe", b"", None, "the header is not JSON"),
        (b"[1]", b"", None, "no JSON object"),
        (b"[" * 100_000, b"", None, "the header is not JSON"),
        (
            b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "a": {}}',
            b"\0" * 8,
            None,
            "names occur twice in the header: ['a']",
        ),
        ({"a": entry(), "b": entry(offsets=(4, 12))}, b"\0" * 12, None, "b at byte .* overlaps a"),
        (
            {"a": entry(), "b": entry(offsets=(12, 20))},
            b"\0" * 20,
            None,
            "b at byte .* leaves a gap after a",
        ),
        ({"a": entry(offsets=(4, 12))}, b"\0" * 12, None, "leaves a gap after the header"),
        ({"a": entry(shape=(3,))}, b"\0" * 8, None, "needs 12 bytes, its offsets .* hold 8"),
        ({"a": entry(offsets=(8, 0))}, b"\0" * 8, None, "data offsets .8, 0."),
        ({"a": entry(offsets=(-8, 0))}, b"\0" * 8, None, "data offsets .-8, 0."),
        ({"a": entry(offsets=(0, 4, 8))}, b"\0" * 8, None, "data offsets"),
        ({"a": entry(shape=(-2,))}, b"\0" * 8, None, "has the shape .-2."),
        ({"a": entry(shape=(True, 2))}, b"\0" * 8, None, "has the shape .True, 2."),
        ({"a": entry(dtype="Q4")}, b"\0" * 8, None, "unknown dtype 'Q4'"),
        ({"a": 3}, b"\0" * 8, None, "header entry of a is no object"),
    ],
)
def test_damaged_header_is_refused(tmp_path, header, data, header_bytes, named):
    path = write_file(tmp_path / "m.safetensors", header, data, header_bytes=header_bytes)
    with pytest.raises(CheckpointError, match=named.replace("['a']", r"\['a'\]")) as error:
        read_header(path)
    assert "m.safetensors" in str(error.value)


@pytest.mark.parametrize("size", [0, 3, 7])
def test_file_without_room_for_a_header_is_refused(tmp_path, size):
    path = tmp_path / "m.safetensors"
    path.write_bytes(b"\0" * size)
    with pytest.raises(CheckpointError, match=f"m.safetensors is truncated: {size} bytes"):
        read_header(path)


@settings(max_examples=60, deadline=None)
@given(cut=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_anywhere_is_refused(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("cut") / "m.safetensors"
    write_file(path, {"a": entry(), "b": entry(offsets=(8, 16))}, b"\0" * 16)
    content = path.read_bytes()
    path.write_bytes(content[: int(cut * len(content))])
    with pytest.raises(CheckpointError):
        read_header(path)


def test_folder_without_weights_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor"):
        open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="no model folder at"):
        open_checkpoint(tmp_path / "gone")


@pytest.fixture
def sharded(tmp_path):
    return make_tiny_checkpoint(tmp_path, num_shards=3)


def shard(number):
    return f"model-{number:05d}-of-00003.safetensors"


def edit_index(folder, change):
    path = folder / "model.safetensors.index.json"
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))


def test_every_missing_and_damaged_shard_is_listed(sharded):
    (sharded / shard(1)).unlink()
    (sharded / shard(3)).write_bytes((sharded / shard(3)).read_bytes()[:-1])
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(sharded)
    assert f"shard {shard(1)} is missing" in str(error.value)
    assert f"{shard(3)} is truncated" in str(error.value)


def test_index_naming_an_absent_tensor_is_refused(sharded):
    edit_index(sharded, lambda raw: raw["weight_map"].update(ghost=shard(2)))
    with pytest.raises(CheckpointError, match=f"ghost is not in {shard(2)}, where the index"):
        open_checkpoint(sharded)


def test_tensor_the_index_does_not_know_is_refused(sharded):
    edit_index(sharded, lambda raw: raw["weight_map"].pop("lm_head.weight"))
    with pytest.raises(CheckpointError, match=r"lm_head\.weight lies in .* but not in the index"):
        open_checkpoint(sharded)


def test_tensor_in_two_shards_is_refused(sharded):
    tensors = {"lm_head.weight": torch.zeros(2)}
    save_file(tensors, sharded / "extra.safetensors")
    edit_index(sharded, lambda raw: raw["weight_map"].update(other="extra.safetensors"))
    with pytest.raises(CheckpointError, match=r"lm_head\.weight lies in extra\.safetensors, the"):
        open_checkpoint(sharded)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "sub/x.safetensors"])
def test_index_cannot_point_out_of_the_folder(sharded, name):
    edit_index(sharded, lambda raw: raw["weight_map"].update(odd=name))
    with pytest.raises(CheckpointError, match="is no plain file name"):
        open_checkpoint(sharded)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("{", "is not JSON"),
        ("[]", "has no weight_map"),
        ('{"weight_map": {}}', "has no weight_map"),
        ('{"weight_map": {"a": 3}}', "maps a to 3"),
    ],
)
def test_unusable_index_is_refused(sharded, content, named):
    (sharded / "model.safetensors.index.json").write_text(content)
    with pytest.raises(CheckpointError, match=named):
        open_checkpoint(sharded)


def test_single_file_beside_an_index_of_others_is_ambiguous(sharded):
    save_file({"a": torch.zeros(1)}, sharded / "model.safetensors")
    with pytest.raises(CheckpointError, match="has both"):
        open_checkpoint(sharded)


def test_declared_and_real_bytes_are_both_known(sharded):
    checkpoint = open_checkpoint(sharded)
    assert checkpoint.declared_bytes == checkpoint.tensor_bytes
    assert len(checkpoint.files) == 3
