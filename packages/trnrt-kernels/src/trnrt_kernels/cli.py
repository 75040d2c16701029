"""Commands of the kernels package: `kernels list|check` and `plan`; imports no torch."""

from __future__ import annotations

import json
from importlib.util import find_spec

import click

from trnrt_kernels.__about__ import __version__
from trnrt_kernels.errors import TrnrtKernelsError
from trnrt_kernels.serving import ServingShape, options

INSTALL_TORCH = "pip install 'trnrt-kernels[torch]'"
HELP_NAMES = {"help_option_names": ["-h", "--help"]}
GIB = 2**30


@click.group(context_settings=HELP_NAMES)
@click.version_option(__version__, package_name="trnrt-kernels")
def commands() -> None:
    """Kernels, references and memory of the models trnrt serves."""


@commands.group(context_settings=HELP_NAMES)
def kernels() -> None:
    """List and check the registered kernels."""


@kernels.command("list")
def list_kernels() -> None:
    """Print every kernel: phase, name, number of tensors, what is mutated, what exists."""
    from trnrt_kernels.registry import KERNELS

    rows = [("phase", "kernel", "kind", "tensors", "parts", "mutates")]
    for (phase, name), entry in sorted(KERNELS.items()):
        spec = entry.spec
        rows.append(
            (
                str(phase),
                name,
                "op" if spec.is_op else "block",
                str(len(spec.arguments)),
                "reference" if entry.nki_module is None else "reference, nki",
                ", ".join(spec.mutated) or "-",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


@kernels.command()
def check() -> None:
    """Check that every kernel has its spec and its reference, and that they agree."""
    if find_spec("torch") is None:
        raise click.ClickException(f"checking references needs torch: {INSTALL_TORCH}")
    from trnrt_kernels.kernel_check import check_kernels

    faulty = []
    for spec, faults in check_kernels():
        click.echo(f"{'FAIL' if faults else 'ok':4}  {spec.phase:7}  {spec.name}")
        for fault in faults:
            click.echo(f"      {fault}")
        if faults:
            faulty.append(f"{spec.phase} {spec.name}")
    if faulty:
        raise click.ClickException(f"{len(faulty)} kernels are faulty: {', '.join(faulty)}")


@commands.command(context_settings=HELP_NAMES)
@click.argument("model")
@options(
    *("dtype", "max_num_seqs", "prefill_ahead", "max_model_len", "max_num_batched_tokens"),
    "cache_gib",
)
@click.option("--json", "as_json", is_flag=True, help="Print the plan as one JSON object.")
def plan(
    model: str,
    dtype: str,
    max_num_seqs: int,
    prefill_ahead: int,
    max_model_len: int | None,
    max_num_batched_tokens: int | None,
    cache_gib: float | None,
    as_json: bool,
) -> None:
    """Print the memory that one cpu engine takes for MODEL, without loading its weights.

    MODEL is a folder or the name of a shipped model (demo). Where it has no weight files, its
    config alone is planned for.
    """
    from trnrt_kernels.memory_plan import plan_memory, table
    from trnrt_kernels.models.glm5_next.config import Glm5NextConfig
    from trnrt_kernels.models.glm5_next.tensor_check import stored_dtype
    from trnrt_kernels.models.shipped import find_model_dir

    try:
        folder = find_model_dir(model)
        config = Glm5NextConfig.from_dir(folder)
        shape = ServingShape.resolve(
            window=config.max_position_embeddings,
            index_kpool=config.index_kpool,
            backend="cpu",
            dtype=stored_dtype(folder, config) if dtype == "auto" else dtype,
            max_num_seqs=max_num_seqs,
            prefill_ahead=prefill_ahead,
            max_model_len=max_model_len,
            max_num_batched_tokens=max_num_batched_tokens,
        )
        budget = None if cache_gib is None else int(cache_gib * GIB)
        memory = plan_memory(config, shape, cache_budget_bytes=budget)
    except TrnrtKernelsError as error:
        raise click.ClickException(str(error)) from error
    usable_tokens = (memory.num_pages - memory.num_scratch) * memory.page_size
    if as_json:
        facts = {
            "dtype": shape.dtype,
            "bytes": dict(memory.rows),
            "total_bytes": memory.total_bytes,
            "page_size": memory.page_size,
            "num_pages": memory.num_pages,
            "num_slots": memory.num_slots,
            "num_scratch": memory.num_scratch,
            "num_bundle_slots": memory.num_bundle_slots,
            "cached_tokens": usable_tokens,
        }
        click.echo(json.dumps(facts, indent=1))
        return
    click.echo(
        f"{shape.dtype}, {max_num_seqs} sequences of at most {shape.max_model_len:,} tokens, "
        f"{usable_tokens:,} tokens cached in pages of {memory.page_size}\n"
    )
    click.echo(table(memory.rows))


def main() -> None:
    """Run `trnrt-kernels`."""
    commands(prog_name="trnrt-kernels")
