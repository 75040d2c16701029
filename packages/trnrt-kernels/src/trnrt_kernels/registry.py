"""Every kernel's spec, NKI function and torch reference; modules are imported on demand.

`trnrt_kernels.registry` itself imports neither torch nor nki: listing what exists is cheap. Asking
for a reference imports torch, asking for the op registers it with torch (schema, fake
implementation and the reference as its CPU implementation, all from the spec).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from trnrt_kernels.common.op_specs import op_specs
from trnrt_kernels.contract import KernelSpec, Phase


@dataclass(frozen=True, slots=True)
class KernelEntry:
    """Where the parts of one kernel are.

    Fields:
        nki_module: module of the NKI function, None until the kernel is written.
        ref_module: module of the torch reference `<name>_ref`.
    """

    spec: KernelSpec
    ref_module: str
    nki_module: str | None = None


def _entries() -> dict[tuple[Phase, str], KernelEntry]:
    return {
        (phase, spec.name): KernelEntry(spec, f"trnrt_kernels.{phase}.{spec.name}_ref")
        for phase in Phase
        for spec in op_specs(phase)
    }


KERNELS: dict[tuple[Phase, str], KernelEntry] = _entries()


def get_spec(phase: Phase, name: str) -> KernelSpec:
    """Look a kernel's spec up.

    Raises:
        KeyError: there is no such kernel; the message lists the phase's kernels.
    """
    if (phase, name) not in KERNELS:
        known = ", ".join(sorted(n for p, n in KERNELS if p is phase))
        raise KeyError(f"no {phase} kernel {name!r}: known: {known}")
    return KERNELS[phase, name].spec


@cache
def get_reference(phase: Phase, name: str) -> Callable[..., Any]:
    """Import a kernel's torch reference."""
    get_spec(phase, name)
    module = import_module(KERNELS[phase, name].ref_module)
    reference: Callable[..., Any] = getattr(module, f"{name}_ref")
    return reference


@cache
def get_nki(phase: Phase, name: str) -> Callable[..., Any] | None:
    """Import a kernel's NKI function; None while it is not written."""
    get_spec(phase, name)
    entry = KERNELS[phase, name]
    if entry.nki_module is None:
        return None
    kernel: Callable[..., Any] = getattr(import_module(entry.nki_module), name)
    return kernel


@cache
def get_op(phase: Phase, name: str) -> Callable[..., Any]:
    """Register a kernel as a torch op, once, and return it.

    Raises:
        ValueError: the kernel is a building block, not an op.
    """
    spec = get_spec(phase, name)
    if not spec.is_op:
        raise ValueError(f"{name} is a building block of other kernels, not an op")
    from trnrt_kernels.common.torch_ops import register_op

    return register_op(spec, get_reference(phase, name))
