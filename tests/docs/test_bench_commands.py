"""Every benchmark starts with the command its page and its section of the results name."""

from __future__ import annotations

import subprocess
import sys

from support.source_tree import ROOT

# One process for all: importing torch takes most of the time.
RUN_HELP = """
import runpy, sys
for script in sys.argv[1:]:
    path = sys.path[:]
    sys.path.insert(0, "tests/bench")
    sys.argv = [script, "--help"]
    for name in [n for n in sys.modules if n.partition(".")[0] == "support"]:
        del sys.modules[name]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        assert not end.code, script
    else:
        raise AssertionError(f"{script} knows no --help")
    sys.path[:] = path
"""


def test_every_benchmark_starts_without_a_path_set_by_hand() -> None:
    scripts = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests/bench").glob("*.py"))
        if '__name__ == "__main__"' in path.read_text("utf-8")
    ]
    assert scripts
    run = subprocess.run(
        [sys.executable, "-I", "-c", RUN_HELP, *scripts],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
