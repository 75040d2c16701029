"""The registry: every kernel has its parts, ops behave as their specs say."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from support.op_driver import OpDriver, random_streams
from trnrt_kernels.contract import Phase, Role
from trnrt_kernels.kernel_check import check_kernels
from trnrt_kernels.models.glm5_next.layers import SegmentKind
from trnrt_kernels.registry import KERNELS, get_nki, get_op, get_reference, get_spec


def test_every_kernel_has_its_parts() -> None:
    faults = {f"{spec.phase} {spec.name}": found for spec, found in check_kernels()}
    assert {name: found for name, found in faults.items() if found} == {}
    assert len(faults) == 15


def test_every_segment_has_its_op_in_both_phases() -> None:
    for phase in Phase:
        for kind in SegmentKind:
            assert get_spec(phase, kind.op_name).is_op


def test_listing_kernels_imports_no_torch() -> None:
    code = (
        "import sys; from trnrt_kernels.registry import KERNELS; assert len(KERNELS) == 15; "
        "sys.exit('torch' in sys.modules or 'nki' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_unknown_kernels_and_building_blocks_are_refused() -> None:
    with pytest.raises(KeyError, match="no decode kernel 'attention': known: dense_half"):
        get_spec(Phase.DECODE, "attention")
    with pytest.raises(ValueError, match="mhc is a building block"):
        get_op(Phase.DECODE, "mhc")
    assert get_nki(Phase.DECODE, "kda_half") is None


@pytest.mark.parametrize("name", ["kda_half", "dsa_half"])
def test_an_op_keeps_to_its_schema(name: str) -> None:
    """torch's own checks: declared mutations, no aliases, fake results as the real ones."""
    driver = OpDriver(name, num_sequences=2)
    spec = get_spec(Phase.DECODE, name)
    tensors = {
        "streams_BND": random_streams(2),
        "positions_B": torch.tensor([0, 0]),
        "state_slots_B": torch.tensor([1, 2]),
        "block_table_BP": torch.stack([driver.block_table(0), driver.block_table(1)]),
        **driver.weights,
        **{cache: torch.zeros_like(tensor) for cache, tensor in driver.caches.items()},
    }
    arguments = [tensors[argument.name] for argument in spec.arguments]
    constants = [driver.constants[constant] for constant, _ in spec.constants]
    op = get_op(Phase.DECODE, name)
    torch.library.opcheck(
        op, (*arguments, *constants), test_utils=("test_schema", "test_faketensor")
    )


def test_ops_and_references_agree() -> None:
    driver = OpDriver("dense_half")
    spec = get_spec(Phase.PREFILL, "dense_half")
    tensors = {"streams_TND": random_streams(5), **driver.weights}
    arguments = [tensors[a.name] for a in spec.arguments]
    arguments += [driver.constants[name] for name, _ in spec.constants]
    op, reference = (get(Phase.PREFILL, "dense_half") for get in (get_op, get_reference))
    assert torch.equal(op(*arguments), reference(*arguments))


def test_weights_of_both_phases_are_the_same() -> None:
    for phase, name in KERNELS:
        if phase is Phase.PREFILL:
            decode, prefill = get_spec(Phase.DECODE, name), get_spec(phase, name)
            for role in (Role.WEIGHT, Role.CACHE):
                assert decode.names(role) == prefill.names(role)
            assert decode.constants == prefill.constants
