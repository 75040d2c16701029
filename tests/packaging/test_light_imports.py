"""What an import or a command line costs: a fresh interpreter, its modules counted."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.source_tree import HEAVY


def modules_after(statement: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter holds after a statement."""
    script = f"import sys\n{statement}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    return set(result.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "statement",
    [
        "import trnrt_kernels, trnrt_engine, trnrt_compile, trnrt_router, trnrt_cli",
        "import trnrt_kernels.cli, trnrt_kernels.serving, trnrt_kernels.manifest",
        "import trnrt_engine.api, trnrt_engine.errors, trnrt_engine.cli",
        "import trnrt_router.cli, trnrt_router.protocol",
        "import trnrt_compile.cli",
        "from trnrt_cli.main import trnrt; trnrt(['--help'], standalone_mode=False)",
        "from trnrt_cli.main import trnrt; trnrt(['--version'], standalone_mode=False)",
        "from trnrt_cli.main import trnrt; trnrt(['serve', '--help'], standalone_mode=False)",
    ],
)
def test_light_import_brings_neither_torch_nor_the_web_framework(statement: str) -> None:
    assert modules_after(statement) & set(HEAVY) == set()


def test_the_simulator_brings_no_torch() -> None:
    statement = "import trnrt_engine.simulate.replay, trnrt_engine.simulate.report"
    assert "torch" not in modules_after(statement + ", trnrt_engine.simulate.picture")


def test_router_front_brings_no_torch() -> None:
    assert modules_after("import trnrt_router.app") & {"torch", "trnrt_engine"} == set()
