"""What differs between running on a CPU and on a Neuron device; the only place that asks which.

Five things belong to a backend: where tensors live and how they get to and from the host, the
implementation behind each op, how a step's callable is loaded, and the environment of a rank. (The
fifth, the compiler, is trnrt-compile's `targets`.) Everything above takes a `Backend` and does not
ask what it is. Importing this module imports no torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trnrt_kernels.contract import Phase
from trnrt_kernels.errors import BackendUnavailable
from trnrt_kernels.manifest import Artefact, GraphKey
from trnrt_kernels.registry import get_reference

if TYPE_CHECKING:
    import torch
    from torch import Tensor

StepFn = Callable[..., "tuple[Tensor, ...]"]

BACKENDS = ("auto", "cpu", "trn2")
NEURON_DEVICES = Path("/dev")
NEURON_PACKAGES = ("nki", "torch_neuronx")


class Backend(Protocol):
    """A way to run a model's steps."""

    @property
    def name(self) -> str:
        """As in `--backend` and in graph keys."""

    @property
    def device(self) -> torch.device:
        """Home of weights and caches."""

    def to_host(self, tensor: Tensor) -> Tensor:
        """Copy a tensor out; later steps do not change the copy."""

    def from_host(self, tensor: Tensor) -> Tensor:
        """Copy a tensor to its home."""

    def implementation(self, phase: Phase, name: str) -> Callable[..., Any]:
        """What computes an op of the registry, in the op's argument order."""

    def load(self, key: GraphKey | None, entry: Artefact | None, step_fn: StepFn) -> StepFn:
        """Make a segment's callable.

        Args:
            key: name of the segment's graph, None for a segment that is not to be compiled.
            entry: its compiled graph, None to run `step_fn` itself.
            step_fn: the segment as a function of tensors.

        Raises:
            BackendUnavailable: the backend cannot run it in this form.
        """

    def rank_environment(self, *, rank: int, world_size: int) -> dict[str, str]:
        """Environment variables that a rank's process must start with."""


class CpuBackend:
    """Runs the torch references in this process."""

    name = "cpu"

    @property
    def device(self) -> torch.device:
        """Host memory."""
        import torch

        return torch.device("cpu")

    def to_host(self, tensor: Tensor) -> Tensor:
        """Copy a tensor; its home is the host already."""
        return tensor.detach().clone()

    def from_host(self, tensor: Tensor) -> Tensor:
        """Copy a tensor, so that a step may write to it."""
        return tensor.detach().clone()

    def implementation(self, phase: Phase, name: str) -> Callable[..., Any]:
        """The torch reference."""
        return get_reference(phase, name)

    def load(self, key: GraphKey | None, entry: Artefact | None, step_fn: StepFn) -> StepFn:
        """Run `step_fn` as it is, with no dispatcher in between."""
        if entry is not None:
            raise BackendUnavailable(
                f"graph {key} is compiled, but this version of trnrt-kernels runs the cpu backend "
                f"eagerly only: serve with --graphs eager"
            )
        return step_fn

    def rank_environment(self, *, rank: int, world_size: int) -> dict[str, str]:
        """Rank numbers, and an equal share of the cores."""
        threads = max(1, len(os.sched_getaffinity(0)) // world_size)
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "OMP_NUM_THREADS": str(threads),
            "OMP_WAIT_POLICY": "PASSIVE",  # spinning, they take the cores from each other
        }


def get_backend(name: str) -> Backend:
    """Return the backend of a name; `auto` is trn2 where a Neuron device is found, else cpu.

    Raises:
        ValueError: no such backend.
        BackendUnavailable: it cannot run here; the message names what is missing.
    """
    if name not in BACKENDS:
        raise ValueError(f"backend is {name!r}, must be one of {', '.join(BACKENDS)}")
    if name == "cpu" or (name == "auto" and not _neuron_devices()):
        return CpuBackend()
    raise BackendUnavailable(
        f"backend {name} cannot run here: {'; '.join(missing_for_trn2())}; serve with --backend cpu"
    )


def missing_for_trn2() -> list[str]:
    """Say what the trn2 backend lacks on this machine, in plain words."""
    missing = []
    if not _neuron_devices():
        missing.append(f"no Neuron device ({NEURON_DEVICES}/neuron0) on this machine")
    missing += [f"package {p} is not installed" for p in NEURON_PACKAGES if find_spec(p) is None]
    missing.append("this version of trnrt-kernels has no kernels for it yet")
    return missing


def _neuron_devices() -> list[Path]:
    return sorted(NEURON_DEVICES.glob("neuron[0-9]*"))
