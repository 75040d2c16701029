"""Loading: every value where it belongs, nothing unfit accepted, no more memory than promised."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from support.tiny_checkpoint import (
    make_tiny_checkpoint,
    tiny_config,
    tiny_tensors,
    write_shards,
)
from trnrt_kernels.errors import CheckpointError
from trnrt_kernels.models.glm5_next import weights as weights_module
from trnrt_kernels.models.glm5_next.config import Glm5NextConfig
from trnrt_kernels.models.glm5_next.inventory import PREFIX, Precision, inventory
from trnrt_kernels.models.glm5_next.weights import load_weights

CONFIG = Glm5NextConfig.from_dict(tiny_config())
Q_PROJ = f"{PREFIX}layers.0.self_attn.q_proj.weight"
EXPERT = f"{PREFIX}layers.1.mlp.experts.3.up_proj.weight"


def scale_by_element(codes, scales):
    rows = (torch.arange(codes.shape[0]) // 128)[:, None]
    columns = (torch.arange(codes.shape[1]) // 128)[None, :]
    return codes.float() * scales[rows, columns]


def expected_values(tensors, dtype):
    """What the inventory should hold, computed tensor by tensor without the loader."""
    values = {}
    for held in inventory(CONFIG):
        parts = []
        for part in held.parts:
            value = tensors[part.hf_name]
            if part.scale_name in tensors:
                value = scale_by_element(value, tensors[part.scale_name])
            parts.append(value.float())
        is_strict = held.precision in (Precision.STRICT_BF16, Precision.STRICT_F32)
        whole = torch.cat([value.flatten() for value in parts]).view(held.shape)
        values[held.path] = whole.to(torch.float32 if is_strict else dtype)
    return values


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("fp8", [True, False], ids=["fp8", "bf16"])
def test_every_tensor_holds_the_checkpoint_value(tmp_path, fp8, dtype, num_shards):
    make_tiny_checkpoint(tmp_path, fp8=fp8, num_shards=num_shards)
    weights = load_weights(tmp_path, CONFIG, dtype=dtype)
    expected = expected_values(tiny_tensors(CONFIG, fp8=fp8), getattr(torch, dtype))
    loaded = dict(weights.items())
    assert loaded.keys() == expected.keys()
    for path, value in expected.items():
        assert loaded[path].dtype == value.dtype, path
        assert torch.equal(loaded[path], value), path
        assert loaded[path].stride() == memory_order(path, value), path


def memory_order(path, value):
    """Strides of a tensor as held: wide float32 matrices of a product lie input by input."""
    is_product = value.dim() == 2 and path != "embed" and not path.endswith("index_ape")
    if is_product and value.dtype == torch.float32 and len(value) >= weights_module.WIDE:
        return (1, len(value))
    return value.contiguous().stride()


@pytest.mark.parametrize("wide", [64, 10**6])
def test_width_decides_the_memory_order(tmp_path, monkeypatch, wide):
    monkeypatch.setattr(weights_module, "WIDE", wide)
    make_tiny_checkpoint(tmp_path)
    weights = load_weights(tmp_path, CONFIG, dtype="float32")
    for path, tensor in weights.items():
        assert tensor.stride() == memory_order(path, tensor), path
    assert weights.lm_head.is_contiguous() == (wide > CONFIG.vocab_size)


@pytest.mark.parametrize(
    ("fp8", "stored", "held"),
    [
        (True, torch.bfloat16, torch.bfloat16),
        (False, torch.bfloat16, torch.bfloat16),
        (False, torch.float32, torch.float32),
        (True, torch.float32, torch.float32),
    ],
)
def test_auto_dtype_is_that_of_the_unquantised_matrices(tmp_path, fp8, stored, held):
    make_tiny_checkpoint(tmp_path, fp8=fp8, dtype=stored)
    assert load_weights(tmp_path, CONFIG).layers[0].qkv_proj.dtype == held


def test_attribute_and_item_access_agree(tmp_path):
    make_tiny_checkpoint(tmp_path)
    layer = load_weights(tmp_path, CONFIG).layers[0]
    assert layer.qkv_proj is layer["qkv_proj"]
    with pytest.raises(AttributeError, match=r"no tensor 'kv_b_proj' here: .*qkv_proj"):
        _ = layer.kv_b_proj


def test_unaligned_tensors_load(tmp_path):
    make_tiny_checkpoint(tmp_path, num_shards=1)
    path = tmp_path / "model.safetensors"
    raw = path.read_bytes()
    header_bytes = int.from_bytes(raw[:8], "little")
    header = raw[8 : 8 + header_bytes].rstrip() + b" "
    header += b" " * (1 - len(header) % 2)  # an odd header moves every tensor to an odd byte
    path.write_bytes(len(header).to_bytes(8, "little") + header + raw[8 + header_bytes :])
    expected = expected_values(tiny_tensors(CONFIG), torch.bfloat16)
    for name, value in load_weights(tmp_path, CONFIG).items():
        assert torch.equal(value, expected[name]), name


def test_progress_counts_every_byte_once(tmp_path):
    make_tiny_checkpoint(tmp_path)
    calls = []
    load_weights(tmp_path, CONFIG, progress=lambda done, total: calls.append((done, total)))
    tensors = tiny_tensors(CONFIG)
    total = sum(t.numel() * t.element_size() for n, t in tensors.items() if "eh_proj" not in n)
    done = [done for done, _ in calls]
    assert done == sorted(done)
    assert calls[-1] == (total, total)


def test_unknown_dtype_is_refused(tmp_path):
    with pytest.raises(ValueError, match="dtype is 'float16'"):
        load_weights(tmp_path, CONFIG, dtype="float16")


def broken(folder, change):
    """A checkpoint whose tensors went through `change(tensors)`."""
    tensors = tiny_tensors(CONFIG)
    change(tensors)
    (folder / "config.json").write_text(json.dumps(tiny_config()))
    write_shards(folder, tensors, 2)
    return folder


def replace(name, make):
    def change(tensors):
        tensors[name] = make(tensors[name])

    return change


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: t.pop(EXPERT + "_scale_inv"), [f"{EXPERT} is F8_E4M3 without its scale"]),
        (
            replace(EXPERT, lambda w: w.bfloat16()),
            [f"{EXPERT}_scale_inv is a scale, but {EXPERT} is BF16"],
        ),
        (lambda t: t.pop(EXPERT), [f"{EXPERT} is missing", f"{EXPERT}_scale_inv has no weight"]),
        (lambda t: t.pop(Q_PROJ), [f"{Q_PROJ} is missing"]),
        (
            lambda t: t.update({"model.foo.weight": torch.ones(1)}),
            ["model.foo.weight is unexpected"],
        ),
        (
            lambda t: t.update({"model.foo.weight_scale_inv": torch.ones(1)}),
            ["model.foo.weight_scale_inv is a scale without a weight"],
        ),
        (
            lambda t: t.update({f"{PREFIX}layers.9.self_attn.q_proj.weight": torch.ones(1)}),
            ["belongs to layer 9, the config has 4 layers"],
        ),
        (
            replace(Q_PROJ, lambda w: w[:-1].clone()),
            ["shape [63, 64], the config asks for [64, 64]"],
        ),
        (replace(Q_PROJ, lambda w: w.half()), [f"{Q_PROJ} is F16, must be BF16 or F32"]),
        (
            replace(f"{PREFIX}layers.0.self_attn.A_log", lambda w: w.bfloat16()),
            ["A_log is BF16, must be F32"],
        ),
        (
            replace(f"{PREFIX}norm.weight", lambda w: w.to(torch.float8_e4m3fn)),
            ["norm.weight is F8_E4M3, must be BF16 or F32"],
        ),
        (replace(EXPERT + "_scale_inv", lambda s: s.bfloat16()), ["is BF16, must be F32"]),
        (
            replace(EXPERT + "_scale_inv", lambda s: torch.ones(1, 2)),
            [f"{EXPERT}_scale_inv has shape [1, 2]", "need [1, 1]"],
        ),
    ],
)
def test_unfit_tensor_is_refused_by_name(tmp_path, change, named):
    broken(tmp_path, change)
    with pytest.raises(CheckpointError) as error:
        load_weights(tmp_path, CONFIG)
    for text in named:
        assert text in str(error.value)


def test_every_defect_is_listed(tmp_path):
    def change(tensors):
        del tensors[Q_PROJ]
        tensors["odd"] = torch.ones(1)

    with pytest.raises(CheckpointError) as error:
        load_weights(broken(tmp_path, change), CONFIG)
    assert len(error.value.findings) == 2


def test_fp8_is_decided_per_tensor(tmp_path):
    """A matrix the release keeps wide may come as FP8 with a scale, and the reverse."""

    def change(tensors):
        codes = torch.ones(64, 64).to(torch.float8_e4m3fn)
        tensors[Q_PROJ], tensors[Q_PROJ + "_scale_inv"] = codes, torch.full((1, 1), 0.5)
        del tensors[EXPERT + "_scale_inv"]
        tensors[EXPERT] = torch.full(tensors[EXPERT].shape, 2.0, dtype=torch.bfloat16)

    weights = load_weights(broken(tmp_path, change), CONFIG)
    assert torch.equal(weights.layers[0].qkv_proj[:64], torch.full((64, 64), 0.5).bfloat16())
    assert bool((weights.layers[1].experts_gate_up[7] == 2.0).all())


def test_draft_layer_and_vision_tower_are_skipped(tmp_path):
    def change(tensors):
        tensors["model.visual.patch_embed.proj.bias"] = torch.ones(3)
        tensors[f"{PREFIX}layers.4.shared_head.norm.weight"] = torch.ones(64)
        tensors[f"{PREFIX}layers.4.self_attn.q_a_proj.weight"] = torch.ones(2, 2)

    load_weights(broken(tmp_path, change), CONFIG)


def test_text_layer_beyond_the_config_is_not_taken_for_a_draft_layer(tmp_path):
    def change(tensors):
        del tensors[f"{PREFIX}layers.4.eh_proj.weight"]
        tensors[f"{PREFIX}layers.4.self_attn.q_proj.weight"] = torch.ones(64, 64)

    with pytest.raises(CheckpointError, match="that one is no draft layer"):
        load_weights(broken(tmp_path, change), CONFIG)


class PeakBytes(TorchDispatchMode):
    """Largest sum of storages that ops have allocated and that are still alive."""

    def __init__(self):
        super().__init__()
        self.live = {}
        self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.live = {key: kept for key, kept in self.live.items() if not kept[0].expired()}
        allocates = all(returned.alias_info is None for returned in func._schema.returns)
        for tensor in tree_leaves(result):
            if allocates and isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self.live[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.peak = max(self.peak, sum(size for _, size in self.live.values()))
        return result


@pytest.mark.parametrize("fp8", [True, False], ids=["fp8", "bf16"])
def test_peak_memory_is_the_weights_held_plus_one_tensor(tmp_path, fp8):
    sizes = {"hidden_size": 256, "moe_intermediate_size": 256, "n_routed_experts": 16}
    config = Glm5NextConfig.from_dict(tiny_config(**sizes))
    make_tiny_checkpoint(tmp_path, fp8=fp8, **sizes)
    with PeakBytes() as meter:
        weights = load_weights(tmp_path, config, dtype="float32")
    held = sum(tensor.numel() * tensor.element_size() for _, tensor in weights.items())
    largest_part = max(
        tensor.numel() * tensor.element_size() for tensor in load_all(tmp_path).values()
    )
    assert held <= meter.peak <= held + largest_part


def resident_file_bytes(folder):
    """Bytes of a folder's files that are mapped into this process and resident."""
    total, is_inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            is_inside = str(folder) in line
        elif is_inside and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def test_mapped_files_are_given_back_while_loading(tmp_path):
    sizes = {"hidden_size": 512, "moe_intermediate_size": 512, "n_routed_experts": 8}
    config = Glm5NextConfig.from_dict(tiny_config(**sizes))
    make_tiny_checkpoint(tmp_path, **sizes)
    on_disk = sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    resident = []

    def look(done, total):
        if done > len(resident) * total / 10:  # ten looks are enough
            resident.append(resident_file_bytes(tmp_path))

    load_weights(tmp_path, config, progress=look)
    assert len(resident) == 10
    assert on_disk > 10_000_000
    assert max(resident) < 1_000_000


def load_all(folder):
    tensors = {}
    for path in folder.glob("*.safetensors"):
        tensors |= load_file(path)
    return tensors


def test_single_file_without_index_loads(tmp_path):
    tensors = tiny_tensors(CONFIG)
    save_file(tensors, tmp_path / "model.safetensors")
    loaded = load_weights(tmp_path, CONFIG)
    assert torch.equal(loaded.embed, tensors[f"{PREFIX}embed_tokens.weight"])
