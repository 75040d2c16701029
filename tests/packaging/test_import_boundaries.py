"""Data flows one way: who may import whom, and what stays out of the light modules."""

from __future__ import annotations

import pytest

from support.source_tree import HEAVY, PACKAGES, belongs_to, imports, module_files, source_folder

MAY_IMPORT = {
    "kernels": (),
    "compile": ("trnrt_kernels",),
    "engine": ("trnrt_kernels",),
    "router": ("trnrt_kernels.serving",),
    "cli": (),
}
ENGINE_PROCESS = ("worker.py", "engine_process.py")
"""The modules of the router that run in the engine's process."""

INTERNAL = ("models", "manifest", "serving", "memory_plan", "sampling")
PUBLIC = ("decode", "prefill", "common", "reference", "sim", "contract", "registry")

LIGHT_NAMES = ("__init__.py", "__main__.py", "__about__.py", "cli.py", "api.py", "config.py")
LIGHT_NAMES += ("manifest.py", "serving.py", "protocol.py", "errors.py")

NEURON = ("neuronxcc", "torch_neuronx", "libneuronxla")
NEURON_HOMES = ("kernels/backend.py", "compile/targets/trn2.py")


def is_allowed(module: str, allowed: tuple[str, ...]) -> bool:
    """Say whether a module lies in an allowed one, or is a package on the way to it."""
    return any(belongs_to(module, name) or belongs_to(name, module) for name in allowed)


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_between_packages_point_one_way(package: str) -> None:
    wrong: list[str] = []
    for path in module_files(package):
        allowed = (*MAY_IMPORT[package], f"trnrt_{package}")
        if package == "router" and path.name in ENGINE_PROCESS:
            allowed += ("trnrt_engine", "trnrt_kernels.errors")
        wrong += [
            f"{path.name}:{found.line} imports {found.module}"
            for found in imports(path)
            if found.module.startswith("trnrt_") and not is_allowed(found.module, allowed)
        ]
    assert wrong == []


def test_router_and_umbrella_never_import_torch() -> None:
    wrong = [
        f"{path.name}:{found.line}"
        for package in ("router", "cli")
        for path in module_files(package)
        for found in imports(path)
        if belongs_to(found.module, "torch")
    ]
    assert wrong == []


def test_public_part_of_the_kernels_never_imports_the_internal_part() -> None:
    folder = source_folder("kernels")
    internal = [f"trnrt_kernels.{name}" for name in INTERNAL]
    wrong = [
        f"{path.relative_to(folder)}:{found.line} imports {found.module}"
        for path in module_files("kernels")
        if path.relative_to(folder).parts[0].removesuffix(".py") in PUBLIC
        for found in imports(path)
        if any(belongs_to(found.module, name) for name in internal)
    ]
    assert wrong == []


@pytest.mark.parametrize("package", PACKAGES)
def test_light_modules_defer_heavy_imports(package: str) -> None:
    light = [path for path in module_files(package) if path.name in LIGHT_NAMES]
    assert light
    wrong = [
        f"{path.relative_to(source_folder(package))}:{found.line} imports {found.module}"
        for path in light
        for found in imports(path)
        if not found.is_deferred and any(belongs_to(found.module, name) for name in HEAVY)
    ]
    assert wrong == []


@pytest.mark.parametrize("package", PACKAGES)
def test_neuron_is_asked_for_in_two_places_only(package: str) -> None:
    wrong = []
    for path in module_files(package):
        home = f"{package}/{path.relative_to(source_folder(package))}"
        for found in imports(path):
            is_neuron = any(belongs_to(found.module, name) for name in NEURON)
            if is_neuron and (home not in NEURON_HOMES or not found.is_deferred):
                wrong.append(f"{home}:{found.line} imports {found.module}")
    assert wrong == []
