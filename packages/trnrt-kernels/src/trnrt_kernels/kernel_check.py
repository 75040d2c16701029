"""Check that every registered kernel has its parts: spec, reference, NKI function where named."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from trnrt_kernels.contract import KernelSpec
from trnrt_kernels.registry import KERNELS, KernelEntry, get_nki, get_op, get_reference


def check_kernels() -> Iterator[tuple[KernelSpec, list[str]]]:
    """Yield every kernel and what is wrong with it."""
    for (phase, name), entry in KERNELS.items():
        yield entry.spec, list(_faults(entry, phase_name=str(phase), name=name))


def _faults(entry: KernelEntry, *, phase_name: str, name: str) -> Iterator[str]:
    spec = entry.spec
    if (spec.phase, spec.name) != (phase_name, name):
        yield f"registered as {phase_name} {name}, but its spec says {spec.phase} {spec.name}"
    try:
        reference = get_reference(spec.phase, spec.name)
    except (ImportError, AttributeError) as error:
        yield f"no reference: {error}"
        return
    yield from _signature_faults(spec, reference, "reference")
    if entry.nki_module is not None:
        try:
            kernel = get_nki(spec.phase, spec.name)
        except (ImportError, AttributeError) as error:
            yield f"no NKI kernel: {error}"
        else:
            if kernel is not None:
                yield from _signature_faults(spec, kernel, "NKI kernel")
    if spec.is_op:
        try:
            get_op(spec.phase, spec.name)
        except (RuntimeError, ValueError) as error:
            yield f"cannot be registered as an op: {error}"


def _signature_faults(spec: KernelSpec, function: Callable[..., Any], what: str) -> Iterator[str]:
    expected = [argument.name for argument in spec.arguments]
    expected += [constant for constant, _ in spec.constants]
    found = list(inspect.signature(function).parameters)
    if found != expected:
        yield f"the {what} takes {found}, the spec says {expected}"
