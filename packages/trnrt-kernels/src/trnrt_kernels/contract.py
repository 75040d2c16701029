"""What a kernel takes and gives: one `KernelSpec` per op, checked once, used everywhere.

The torch op's schema, its fake implementation, the argument order of a segment and of a compiled
package, and the check of real tensors are all derived from the spec, so none of them can drift.
Import-light: torch is not needed to read a spec.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Scalar = int | float | bool | str

SCALE_BLOCK = 128  # rows and columns that share one scale of FP8 codes
_SCHEMA_TYPES: dict[type, str] = {int: "int", float: "float", bool: "bool", str: "str"}


class Phase(StrEnum):
    """The form of a step: one token of many sequences, or a chunk of one sequence."""

    DECODE = "decode"
    PREFILL = "prefill"


class Role(StrEnum):
    """Where an argument comes from; segments collect their arguments by role."""

    STREAM = "stream"  # result of the segment before
    INPUT = "input"  # made by the runner for this step
    WEIGHT = "weight"
    CACHE = "cache"  # lives across steps and is mutated in place


class DType(StrEnum):
    """Element type an argument must have; `ACTIVATION` is one dtype for the whole step."""

    ACTIVATION = "activation"
    CACHE = "cache"  # float32, bfloat16 or float8_e4m3fn, chosen per cache
    FLOAT32 = "float32"
    INT64 = "int64"
    BOOL = "bool"


class WeightForm(StrEnum):
    """How a quantisable weight reaches the op: one tensor, or FP8 codes and block scales."""

    TENSOR = "tensor"
    CODES = "codes+scales"


_ALLOWED = {
    DType.ACTIVATION: {"float32", "bfloat16", "float16"},
    DType.CACHE: {"float32", "bfloat16", "float16", "float8_e4m3fn"},
    DType.FLOAT32: {"float32"},
    DType.INT64: {"int64"},
    DType.BOOL: {"bool"},
}


@dataclass(frozen=True, slots=True)
class Argument:
    """One tensor of an op.

    Fields:
        dims: one entry per dimension, a number, a letter, or a product such as `3*H`.
        is_quantisable: the weight may also come as codes + scales.
    """

    name: str
    dims: tuple[str, ...]
    dtype: DType
    role: Role
    is_quantisable: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """One tensor an op returns; `dims` are in the arguments' letters and in constants' names."""

    name: str
    dims: tuple[str, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Limit:
    """What a dimension may be: within bounds, and a multiple of a number."""

    least: int = 1
    most: int | None = None
    multiple_of: int = 1

    def allows(self, size: int) -> bool:
        """Whether a size is within the limit."""
        is_small_enough = self.most is None or size <= self.most
        return self.least <= size and is_small_enough and size % self.multiple_of == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSpec:
    """Name, arguments, results and limits of one kernel.

    Fields:
        constants: names and types of the numbers that follow the tensors; part of the graph.
        is_op: registered as a torch op; False for building blocks of other kernels.
    """

    name: str
    phase: Phase
    arguments: tuple[Argument, ...]
    constants: tuple[tuple[str, type], ...] = ()
    results: tuple[Result, ...]
    limits: Mapping[str, Limit] = field(default_factory=dict)
    is_op: bool = True

    @property
    def qualname(self) -> str:
        """Name in torch's op registry."""
        return f"trnrt_{self.phase}::{self.name}"

    @property
    def mutated(self) -> tuple[str, ...]:
        """Names of the arguments written in place."""
        return tuple(a.name for a in self.arguments if a.role is Role.CACHE)

    def names(self, role: Role) -> tuple[str, ...]:
        """Names of the arguments of a role, in call order."""
        return tuple(a.name for a in self.arguments if a.role is role)

    def arguments_in(self, form: WeightForm) -> tuple[Argument, ...]:
        """The arguments when quantisable weights come in `form`.

        In `CODES` form each of them is followed by its `<name>_scale`, float32, one per block of
        128 x 128 (the last block of a row or column may be partial).
        """
        if form is WeightForm.TENSOR:
            return self.arguments
        expanded: list[Argument] = []
        for argument in self.arguments:
            expanded.append(argument)
            if argument.is_quantisable:
                *lead, rows, columns = argument.dims
                dims = (*lead, f"{rows}/{SCALE_BLOCK}", f"{columns}/{SCALE_BLOCK}")
                name = f"{argument.name}_scale"
                expanded.append(Argument(name, dims, DType.FLOAT32, Role.WEIGHT))
        return tuple(expanded)

    def schema(self) -> str:
        """Signature in torch's schema language, without the name."""
        alias = iter(range(len(self.arguments)))
        tensors = [
            f"Tensor(a{next(alias)}!) {a.name}" if a.role is Role.CACHE else f"Tensor {a.name}"
            for a in self.arguments
        ]
        scalars = [f"{_SCHEMA_TYPES[kind]} {name}" for name, kind in self.constants]
        results = ["Tensor"] * len(self.results)
        returns = results[0] if len(results) == 1 else f"({', '.join(results)})"
        return f"({', '.join(tensors + scalars)}) -> {returns}"

    def bind(self, tensors: Sequence[torch.Tensor]) -> dict[str, int]:
        """Check tensors against the spec and return the size of every dimension letter.

        Raises:
            ValueError: a wrong number of tensors, rank, size or dtype, or a limit exceeded; the
                message names the kernel, the argument and both values.
        """
        if len(tensors) != len(self.arguments):
            raise ValueError(
                f"{self.qualname} takes {len(self.arguments)} tensors, got {len(tensors)}"
            )
        sizes = self._solve(tensors)
        for argument, tensor in zip(self.arguments, tensors, strict=True):
            expected = tuple(_size(dim, sizes) for dim in argument.dims)
            if tuple(tensor.shape) != expected:
                raise ValueError(
                    f"{self.qualname}: {argument.name} is {list(tensor.shape)}, expected "
                    f"{list(expected)} = [{', '.join(argument.dims)}]"
                )
        self._check_dtypes(tensors)
        for letter, limit in self.limits.items():
            if not limit.allows(sizes[letter]):
                raise ValueError(f"{self.qualname}: {letter} = {sizes[letter]} is outside {limit}")
        return sizes

    def result_shapes(self, sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
        """Shapes of the results for bound sizes."""
        return [tuple(_size(dim, sizes) for dim in result.dims) for result in self.results]

    def _solve(self, tensors: Iterable[torch.Tensor]) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for argument, tensor in zip(self.arguments, tensors, strict=True):
            if tensor.dim() != len(argument.dims):
                raise ValueError(
                    f"{self.qualname}: {argument.name} has {tensor.dim()} dimensions, expected "
                    f"[{', '.join(argument.dims)}]"
                )
            for dim, size in zip(argument.dims, tensor.shape, strict=True):
                if dim.isalpha():
                    sizes.setdefault(dim, size)
        return sizes

    def _check_dtypes(self, tensors: Iterable[torch.Tensor]) -> None:
        activation: str | None = None
        for argument, tensor in zip(self.arguments, tensors, strict=True):
            dtype = str(tensor.dtype).removeprefix("torch.")
            allowed = _ALLOWED[argument.dtype]
            if argument.dtype is DType.ACTIVATION:
                activation = activation or dtype
                allowed = allowed & {activation}
            if dtype not in allowed:
                raise ValueError(
                    f"{self.qualname}: {argument.name} is {dtype}, expected "
                    f"{' or '.join(sorted(allowed)) or 'a float type'}"
                )


def _size(dim: str, sizes: Mapping[str, int]) -> int:
    """Size of a dimension expression: a product, or a quotient rounded up."""
    numerator, _, divisor = dim.partition("/")
    value = prod(_factor(factor, sizes) for factor in numerator.split("*"))
    return -(-value // _factor(divisor, sizes)) if divisor else value


def _factor(factor: str, sizes: Mapping[str, int]) -> int:
    return int(factor) if factor.isdigit() else sizes[factor]
