"""Commands of the engine package: `verify` and `cache`."""

from __future__ import annotations

from pathlib import Path

import click

from trnrt_engine.simulate.commands import cache


@click.group()
def main() -> None:
    """Inference engine of trnrt."""


@click.group()
def verify() -> None:
    """Check a model folder, or this build against golden data."""


@verify.command("golden")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--numeric-mode",
    type=click.Choice(["strict", "fast"]),
    default="strict",
    show_default=True,
    help="strict: a row's bits do not depend on its batch or chunk",
)
def golden(folder: Path, numeric_mode: str) -> None:
    """Run FOLDER's model in float32 and compare it with the golden data beside it.

    Prints, per quantity, the largest error, what is allowed, and the largest share of that used
    anywhere. Exits 0 only if every quantity holds.
    """
    from trnrt_engine.errors import TrnrtEngineError
    from trnrt_engine.verify_golden import verify_golden
    from trnrt_kernels.errors import TrnrtKernelsError
    from trnrt_kernels.numeric import NumericMode

    failed = []
    try:
        for check in verify_golden(folder, numeric_mode=NumericMode(numeric_mode)):
            verdict = "ok" if check.holds else "FAIL"
            place = f"  {check.where}" if check.where else ""
            click.echo(
                f"{verdict:4}  {check.quantity:34}  error {check.error:9.3g}  "
                f"allowed {check.tolerance!s:19}  used {check.share:7.1%}{place}"
            )
            if not check.holds:
                failed.append(check.quantity)
    except (TrnrtEngineError, TrnrtKernelsError) as error:
        raise click.ClickException(str(error)) from error
    if failed:
        raise click.ClickException(f"{folder.name}: out of tolerance: {', '.join(failed)}")
    click.echo(f"{folder.name}: all quantities hold")


@verify.command("model")
@click.argument("model")
def model(model: str) -> None:
    """Check MODEL without loading its weights.

    MODEL is a folder or the name of a shipped model (demo). Reads configuration, headers, sizes,
    tokenizer and template. Exits 0 only if nothing stops it from being served.
    """
    from trnrt_kernels.errors import TrnrtKernelsError
    from trnrt_kernels.models.glm5_next.model_check import Level, check_model
    from trnrt_kernels.models.shipped import find_model_dir

    try:
        folder = find_model_dir(model)
    except TrnrtKernelsError as error:
        raise click.ClickException(str(error)) from error
    num_wrong = 0
    for finding in check_model(folder):
        num_wrong += finding.level is Level.WRONG
        click.echo(f"{finding.level:5}  {finding.subject:10}  {finding.message}")
    if num_wrong:
        raise click.ClickException(f"{folder} cannot be served: {num_wrong} defects")
    click.echo(f"{folder} can be served")


main.add_command(verify)
main.add_command(cache)
