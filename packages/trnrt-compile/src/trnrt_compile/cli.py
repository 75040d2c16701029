"""The command group `compile`, found by `trnrt` and installed as `trnrt-compile`."""

from __future__ import annotations

import click

from trnrt_compile import __version__


@click.group(name="compile", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, package_name="trnrt-compile", prog_name="trnrt-compile")
def command() -> None:
    """Compile the graphs of a model ahead of time, on a host without the device.

    This version has no steps yet: it brings the group, and the names and the manifest that
    compiled graphs are stored under (trnrt_kernels.manifest). Serving does not need it: the cpu
    backend runs eagerly.
    """


def main() -> None:
    """Run `trnrt-compile`."""
    command(prog_name="trnrt-compile")
