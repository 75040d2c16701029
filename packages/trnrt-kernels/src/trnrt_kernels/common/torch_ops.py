"""Torch ops made from specs, and their replacement by references in an exported graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter
from torch.fx.node import Target

from trnrt_kernels.common import grouped_mm_fake
from trnrt_kernels.contract import DType, KernelSpec

_OP_REFERENCES: dict[str, Callable[..., Any]] = {}


def register_op(spec: KernelSpec, reference: Callable[..., Any]) -> Callable[..., Any]:
    """Register a spec with torch: schema, fake implementation, reference on CPU."""
    op = torch.library.custom_op(
        spec.qualname, reference, mutates_args=spec.mutated, schema=spec.schema()
    )
    op.register_fake(_fake(spec))
    _OP_REFERENCES[spec.qualname] = reference
    overload: Callable[..., Any] = getattr(
        getattr(torch.ops, spec.qualname.partition("::")[0]), spec.name
    ).default
    return overload


def is_trnrt_op(target: Any) -> bool:
    """Whether a graph node's target is one of our ops."""
    return isinstance(target, torch._ops.OpOverload) and target.namespace.startswith("trnrt_")


class InlinedReferences(torch.nn.Module):
    """Runs a graph with every op of ours replaced by its reference.

    Exporting it gives the same step in plain ATen. A decomposition table would not do: a mutating
    op is wrapped before the table is read.
    """

    def __init__(self, graph_module: GraphModule) -> None:
        super().__init__()
        grouped_mm_fake.register()
        self.graph_module = graph_module

    def forward(self, *arguments: Any) -> Any:
        """Run the graph."""
        return _ReferenceInterpreter(self.graph_module).run(*arguments)


class _ReferenceInterpreter(Interpreter):
    def call_function(self, target: Target, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if is_trnrt_op(target):
            target = _OP_REFERENCES[str(target).removesuffix(".default").replace(".", "::")]
        return super().call_function(target, args, kwargs)


def _fake(spec: KernelSpec) -> Callable[..., Any]:
    """The op on fake tensors: check the arguments, make empty results."""
    num_tensors = len(spec.arguments)
    names = [name for name, _ in spec.constants]

    def fake(*arguments: Any, **constants: Any) -> Any:
        tensors = arguments[:num_tensors]
        scalars = dict(zip(names, arguments[num_tensors:], strict=False))
        sizes = spec.bind(tensors)
        sizes |= {k: v for k, v in (scalars | constants).items() if isinstance(v, int)}
        results = [
            _empty(tensors, spec, shape, result.dtype)
            for shape, result in zip(spec.result_shapes(sizes), spec.results, strict=True)
        ]
        return results[0] if len(results) == 1 else tuple(results)

    return fake


def _empty(
    tensors: tuple[Tensor, ...], spec: KernelSpec, shape: tuple[int, ...], dtype: DType
) -> Tensor:
    if dtype is DType.ACTIVATION:
        index = next(i for i, a in enumerate(spec.arguments) if a.dtype is DType.ACTIVATION)
        return tensors[index].new_empty(shape)
    return tensors[0].new_empty(shape, dtype=getattr(torch, dtype.value))
