"""The cpu backend runs what it is given; another is refused with what it lacks."""

import pytest
import torch

from trnrt_kernels import backend
from trnrt_kernels.backend import get_backend
from trnrt_kernels.contract import Phase
from trnrt_kernels.errors import BackendUnavailable
from trnrt_kernels.registry import get_reference


@pytest.fixture
def device_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(backend, "NEURON_DEVICES", tmp_path)
    return tmp_path


def test_auto_is_cpu_without_a_device(device_folder):
    assert get_backend("auto").name == "cpu"


def test_eager_segment_is_the_function_itself():
    def step(x):
        return (x + 1,)

    assert get_backend("cpu").load(None, None, step) is step


def test_ops_are_computed_by_their_references():
    found = get_backend("cpu").implementation(Phase.DECODE, "kda_half")
    assert found is get_reference(Phase.DECODE, "kda_half")


def test_host_copies_are_independent_of_later_steps():
    cpu = get_backend("cpu")
    cache = torch.ones(3)
    copy = cpu.to_host(cache)
    restored = cpu.from_host(copy)
    cache += 1
    restored += 5
    assert copy.tolist() == [1.0, 1.0, 1.0]
    assert cpu.device == cache.device


def test_ranks_share_the_cores():
    environment = get_backend("cpu").rank_environment(rank=3, world_size=4)
    assert environment["RANK"] == "3"
    assert environment["WORLD_SIZE"] == "4"
    assert int(environment["OMP_NUM_THREADS"]) >= 1


def test_trn2_without_a_device_names_what_is_missing(device_folder):
    with pytest.raises(BackendUnavailable) as error:
        get_backend("trn2")
    for text in ("no Neuron device", "package nki is not installed", "--backend cpu"):
        assert text in str(error.value)


def test_auto_beside_a_device_does_not_quietly_fall_back_to_cpu(device_folder):
    (device_folder / "neuron0").touch()
    with pytest.raises(BackendUnavailable) as error:
        get_backend("auto")
    assert "no Neuron device" not in str(error.value)
    assert "--backend cpu" in str(error.value)


def test_unknown_backend_is_refused():
    with pytest.raises(ValueError, match="backend is 'gpu', must be one of auto, cpu, trn2"):
        get_backend("gpu")
