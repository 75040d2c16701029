"""Segments as pure functions of tensors: (streams, step inputs, weights, caches) -> results.

A segment takes its tensors positionally in the order of its op's spec, as a compiled package
does, so one graph serves all layers of a kind and eager and compiled calls look the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from torch import Tensor

from trnrt_kernels.contract import KernelSpec, Phase, Role, Scalar
from trnrt_kernels.models.glm5_next.caches import Caches
from trnrt_kernels.models.glm5_next.config import Glm5NextConfig
from trnrt_kernels.models.glm5_next.inputs import DecodeInputs, PrefillInputs
from trnrt_kernels.models.glm5_next.layers import Segment, SegmentKind
from trnrt_kernels.models.glm5_next.weights import Weights
from trnrt_kernels.registry import get_spec
from trnrt_kernels.sampling import SamplingInputs, SamplingState, sample, sample_greedy

Resolve = Callable[[Phase, str], Callable[..., Any]]
StepFn = Callable[..., tuple[Tensor, ...]]
StepInputs = DecodeInputs | PrefillInputs


class HeadVariant(StrEnum):
    """What the head segment ends in: logits, the likeliest token, or a drawn one."""

    LOGITS = "logits"
    GREEDY = "greedy"
    SAMPLE = "sample"


@dataclass(frozen=True, slots=True)
class SegmentCall:
    """A segment kind in one phase: its op and the constants of its graph.

    Fields:
        inputs, weights, caches: names of the op's arguments by role, in call order.
    """

    kind: SegmentKind
    spec: KernelSpec
    constants: tuple[Scalar, ...]
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    caches: tuple[str, ...]

    def step_fn(self, resolve: Resolve) -> StepFn:
        """The segment as a function of tensors.

        Args:
            resolve: `registry.get_reference` to run or compile it for CPU, `registry.get_op` to
                capture it.
        """
        op = resolve(self.spec.phase, self.spec.name)
        constants = self.constants
        if len(self.spec.results) == 1:
            return lambda *tensors: (op(*tensors, *constants),)
        return lambda *tensors: tuple(op(*tensors, *constants))


def segment_call(
    kind: SegmentKind, phase: Phase, config: Glm5NextConfig, *, row_tile: int, group_name: str = ""
) -> SegmentCall:
    """Bind a kind's op to a model's numbers."""
    spec = get_spec(phase, kind.op_name)
    own: dict[str, Scalar] = {"row_tile": row_tile, "group_name": group_name}
    constants = tuple(
        own[name] if name in own else getattr(config, name) for name, _ in spec.constants
    )
    names = (spec.names(role) for role in (Role.INPUT, Role.WEIGHT, Role.CACHE))
    return SegmentCall(kind, spec, constants, *names)


def head_step_fn(call: SegmentCall, resolve: Resolve, variant: HeadVariant) -> StepFn:
    """The head and what follows it in the same graph.

    `SAMPLE` takes the tensors of `SamplingInputs` and `SamplingState` behind the op's own and
    draws for as many rows as the former have: rows that only pad the product are left out.
    """
    head = call.step_fn(resolve)
    if variant is HeadVariant.LOGITS:
        return head
    if variant is HeadVariant.GREEDY:
        return lambda *tensors: tuple(sample_greedy(head(*tensors)[0]))
    num_own = len(call.spec.arguments)
    num_settings = len(SamplingInputs._fields)

    def drawn(*tensors: Tensor) -> tuple[Tensor, ...]:
        (logits,) = head(*tensors[:num_own])
        settings = SamplingInputs(*tensors[num_own : num_own + num_settings])
        state = SamplingState(*tensors[num_own + num_settings :])
        return tuple(sample(logits[: settings.slots_B.shape[0]], settings, state))

    return drawn


def segment_weights(call: SegmentCall, segment: Segment, weights: Weights) -> tuple[Tensor, ...]:
    """A segment's weights in call order."""
    if segment.layer is None:
        return tuple(getattr(weights, name) for name in call.weights)
    layer = weights.layers[segment.layer]
    return tuple(layer[name] for name in call.weights)


def segment_caches(call: SegmentCall, segment: Segment, caches: Caches) -> tuple[Tensor, ...]:
    """A segment's caches in call order."""
    if segment.layer is None:
        return ()
    layer = caches.layers[segment.layer]
    return tuple(layer[name] for name in call.caches)


def segment_inputs(call: SegmentCall, inputs: StepInputs) -> tuple[Tensor, ...]:
    """The step inputs a segment takes, in call order."""
    return tuple(getattr(inputs, name) for name in call.inputs)


def chain(step_fns: Sequence[StepFn], num_inputs: Sequence[int]) -> StepFn:
    """Fuse consecutive segments into one function: concatenation of their arguments.

    The first segment takes its streams from the caller, each later one from the segment before;
    `num_inputs` counts each segment's tensors besides its streams.
    """

    def fused(*tensors: Tensor) -> tuple[Tensor, ...]:
        num_streams = len(tensors) - sum(num_inputs)
        streams, rest = tensors[:num_streams], list(tensors[num_streams:])
        for step_fn, count in zip(step_fns, num_inputs, strict=True):
            streams = step_fn(*streams, *rest[:count])
            del rest[:count]
        return streams

    return fused
