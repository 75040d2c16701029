"""Segments export: static ATen, declared mutations, no op of ours left, equal to eager."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram

from support.golden_models import Sequences, are_equal, golden_model, random_ids
from trnrt_kernels.common.torch_ops import InlinedReferences, is_trnrt_op
from trnrt_kernels.contract import Phase, Role
from trnrt_kernels.models.glm5_next.layers import Segment, SegmentKind
from trnrt_kernels.models.glm5_next.model import Model
from trnrt_kernels.models.glm5_next.segments import (
    SegmentCall,
    StepFn,
    segment_caches,
    segment_call,
    segment_inputs,
    segment_weights,
)
from trnrt_kernels.registry import get_op, get_reference

# torch copies its own pytree specs with a deprecated check
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")

SLOW = pytest.mark.slow
CASES = (
    "kpool4",
    pytest.param("shared_indexer", marks=SLOW),
    pytest.param("kpool16", marks=SLOW),
    pytest.param("long_group", marks=SLOW),
    pytest.param("fp8_block", marks=SLOW),
)
ROWS = {Phase.DECODE: 4, Phase.PREFILL: 64}
DATA_DEPENDENT = {"aten.nonzero", "aten.item", "aten._local_scalar_dense", "aten.masked_select"}


class Step(torch.nn.Module):
    """A segment as a module."""

    def __init__(self, step_fn: StepFn) -> None:
        super().__init__()
        self.step_fn = step_fn

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return self.step_fn(*tensors)


def segments_of_each_kind(model: Model) -> list[Segment]:
    return list({segment.kind: segment for segment in reversed(model.plan)}.values())


def example(
    model: Model, segment: Segment, phase: Phase, *, exports: dict[int, int] | None = None
) -> tuple[SegmentCall, list[Tensor]]:
    """A segment's call and real tensors for it: sequence 1 continued at position 21."""
    count = 64 if exports else 40
    sequences = Sequences.make(model, 3)
    ids = random_ids(model, 21, seed=0)
    for index in range(3):
        sequences.prefill(index, ids + index, rows=64)
    inputs = (
        sequences.batch_inputs([0, 1, 2], [4, 5, 6], [21, 21, 21], rows=ROWS[phase])
        if phase is Phase.DECODE
        else sequences.chunk_inputs(
            1, random_ids(model, count, seed=1), 21, rows=ROWS[phase], exports=exports
        )
    )
    call = segment_call(segment.kind, phase, model.config, row_tile=model.row_tile)
    generator = torch.Generator().manual_seed(0)
    shape = (ROWS[phase], model.config.hc_mult, model.config.hidden_size)
    tensors = [torch.randn(shape, generator=generator)] * (segment.kind is not SegmentKind.EMBED)
    if segment.kind is SegmentKind.DSA_SHARED:
        pools = torch.full((ROWS[phase], model.config.index_pools), -1)
        pools[:, :3] = torch.arange(3)
        tensors.append(pools)
    if segment.kind is SegmentKind.HEAD:
        tensors += [torch.tensor([20])] * (phase is Phase.PREFILL)
    else:
        tensors += segment_inputs(call, inputs)
    tensors += segment_weights(call, segment, model.weights)
    tensors += segment_caches(call, segment, sequences.caches)
    return call, tensors


def export_twice(call: SegmentCall, tensors: list[Tensor]) -> tuple[ExportedProgram, ...]:
    """Export a segment over its op, then again with the op replaced by its reference."""
    mode = FakeTensorMode()
    fake = tuple(mode.from_tensor(tensor) for tensor in tensors)
    with mode:
        captured = torch.export.export(Step(call.step_fn(get_op)), fake)
    return captured, torch.export.export(InlinedReferences(captured.module()), fake)


def call_targets(program: ExportedProgram) -> Iterator[object]:
    yield from (node.target for node in program.graph.nodes if node.op == "call_function")


def mutated_names(program: ExportedProgram, call: SegmentCall) -> set[str]:
    """Arguments that the functionalised program writes back."""
    signature = program.run_decompositions({}).graph_signature
    order = {name: index for index, name in enumerate(signature.user_inputs)}
    return {
        call.spec.arguments[order[name]].name for name in signature.user_inputs_to_mutate.values()
    }


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("case", CASES)
def test_segments_export(case: str, phase: Phase) -> None:
    model = golden_model(case)
    for segment in segments_of_each_kind(model):
        call, tensors = example(model, segment, phase)
        check_export(call, tensors)


def test_a_chunk_that_exports_states_exports() -> None:
    model = golden_model("kpool4")
    call, tensors = example(model, Segment(SegmentKind.KDA, 0), Phase.PREFILL, exports={64: 2})
    check_export(call, tensors)


def check_export(call: SegmentCall, tensors: list[Tensor]) -> None:
    phase = call.spec.phase
    captured, plain = export_twice(call, tensors)
    assert [t for t in call_targets(captured) if is_trnrt_op(t)] == [get_op(phase, call.spec.name)]
    targets = list(call_targets(plain))
    assert not [t for t in targets if is_trnrt_op(t)]
    assert not DATA_DEPENDENT & {str(t).rpartition(".")[0] for t in targets}
    values = [n.meta["val"] for n in plain.graph.nodes if "val" in n.meta]
    sizes = [size for v in values if isinstance(v, Tensor) for size in v.shape]
    assert all(type(size) is int for size in sizes)
    caches = set(call.spec.names(Role.CACHE))
    assert not caches or mutated_names(plain, call) == caches
    exported, eager = ([t.clone() for t in tensors] for _ in range(2))
    results = list(plain.module()(*exported))
    expected = list(call.step_fn(get_reference)(*eager))
    assert are_equal([*results, *exported], [*expected, *eager]), call.kind


def test_an_undeclared_write_would_be_seen() -> None:
    """The positive control of the mutation check."""
    model = golden_model("kpool4")
    call, tensors = example(model, Segment(SegmentKind.KDA, 0), Phase.DECODE)
    step_fn = call.step_fn(get_reference)

    def writes_a_weight(*arguments: Tensor) -> tuple[Tensor, ...]:
        arguments[call.spec.arguments.index(named(call, "a_log"))].add_(1)
        return step_fn(*arguments)

    program = torch.export.export(Step(writes_a_weight), tuple(tensors))
    assert mutated_names(program, call) == {"a_log", "conv_tail", "kda_state"}


def named(call: SegmentCall, name: str) -> object:
    return next(a for a in call.spec.arguments if a.name == name)


def test_torch_still_refuses_float32_in_the_fake_grouped_product() -> None:
    """When this fails, torch has learnt it: delete `common/grouped_mm_fake.py`."""
    from torch._meta_registrations import meta_grouped_mm

    rows, groups = torch.empty(4, 8, device="meta"), torch.empty(2, 8, 16, device="meta")
    ends = torch.empty(2, dtype=torch.int32, device="meta")
    with pytest.raises(RuntimeError, match="Expected inputs of BF16 type"):
        meta_grouped_mm(rows, groups, ends)
