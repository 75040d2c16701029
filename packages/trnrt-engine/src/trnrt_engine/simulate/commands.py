"""`trnrt cache`: replay traces through the cache's own code, and make traces up."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trnrt_kernels.serving import FiniteRange, options

if TYPE_CHECKING:
    from trnrt_engine.simulate.sizes import EngineSizes

GIB = 2**30
DEFAULT_CACHE_GIB = 64.0


@click.group()
def cache() -> None:
    """Study the prefix cache without a model."""


@cache.command()
@click.argument("trace", type=click.Path(path_type=Path, exists=True))
@click.option(
    "--model",
    help="Folder or shipped model (demo) whose sizes are used  [default: those of GLM-5.3-Flash "
    f"with FP8 pages, and a cache of {DEFAULT_CACHE_GIB:g} GiB]",
)
@options(
    *("cache_gib", "cache_host_gib", "max_num_seqs", "prefill_ahead", "max_model_len"),
    *("max_num_batched_tokens", "max_decode_stall_ms"),
)
@click.option(
    "--disk-gib",
    type=FiniteRange(min=0),
    default=0.0,
    show_default=True,
    help="Most that cached prefixes take on disk, in GiB; 0 is no disk.",
)
@click.option(
    "--lanes",
    type=click.IntRange(min=1),
    help="Sessions, with their sub-agents, alive at once; the next begins when one has ended  "
    "[default: they begin when the trace says]",
)
@click.option(
    "--cost",
    "costs",
    multiple=True,
    metavar="NAME=VALUE",
    help="Change an assumed cost; `trnrt cache defaults` lists them. May be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    help="Draw occupancy and hit depth over time into this SVG file.",
)
def simulate(
    trace: Path,
    model: str | None,
    lanes: int | None,
    costs: tuple[str, ...],
    as_json: bool,
    plot: Path | None,
    **room: Any,
) -> None:
    """Replay TRACE through scheduler and caches in virtual time and report what it hits.

    TRACE is a file of JSON lines as `trnrt cache generate` writes, or a file or folder of recorded
    sessions in the public weka schema. Times are modelled, hits are not.
    """
    import msgspec

    from trnrt_engine.errors import TrnrtEngineError
    from trnrt_engine.simulate.picture import draw
    from trnrt_engine.simulate.replay import Replay
    from trnrt_engine.simulate.report import report_of, text_of
    from trnrt_engine.simulate.trace import read_trace
    from trnrt_kernels.errors import TrnrtKernelsError

    if plot is not None and plot.suffix != ".svg":
        raise click.BadParameter(f"{plot} must end in .svg", param_hint="--plot")
    try:
        replay = Replay(read_trace(trace), _sizes(model, **room), _costs(costs), num_lanes=lanes)
        replay.run()
    except (TrnrtEngineError, TrnrtKernelsError) as error:
        raise click.ClickException(str(error)) from error
    report = report_of(replay)
    if plot is not None:
        plot.write_text(draw(replay), "utf-8")
    click.echo(msgspec.json.encode(report).decode() if as_json else text_of(report))


@cache.command()
@click.argument("output", type=click.Path(path_type=Path, dir_okay=False, writable=True))
@click.option(
    "--sessions",
    type=click.IntRange(min=1),
    default=200,
    show_default=True,
    help="Sessions, their sub-agents not counted.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="The same seed gives the same trace."
)
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="NAME=VALUE",
    help="Change what sessions are like; `trnrt cache defaults` lists the names. May be repeated.",
)
def generate(output: Path, sessions: int, seed: int, changes: tuple[str, ...]) -> None:
    """Write made-up sessions of coding agents to OUTPUT as JSON lines."""
    from trnrt_engine.simulate.generate import SessionMix
    from trnrt_engine.simulate.generate import generate as make_up
    from trnrt_engine.simulate.trace import write_trace

    given = _numbers(changes, SessionMix, option="--set")
    mix = _checked(SessionMix, {"num_sessions": sessions, "seed": seed, **given}, option="--set")
    requests = make_up(mix)
    write_trace(output, requests, note=str(mix))
    tokens = sum(request.num_tokens for request in requests)
    click.echo(f"{len(requests):,} requests, {tokens:,} prompt tokens: {output}")


@cache.command()
def defaults() -> None:
    """List the costs `simulate` assumes and what the sessions of `generate` are like."""
    from trnrt_engine.simulate.costs import CostModel
    from trnrt_engine.simulate.generate import SessionMix

    for title, struct in (("simulate --cost", CostModel), ("generate --set", SessionMix)):
        click.echo(title)
        for field in fields(struct):
            click.echo(f"  {field.name:<22}{field.default:g}")


def _sizes(model: str | None, *, disk_gib: float, **room: Any) -> EngineSizes:
    from trnrt_engine.simulate.sizes import EngineSizes

    cache_gib, host_gib = room.pop("cache_gib"), room.pop("cache_host_gib")
    below = {"host_bytes": int(host_gib * GIB), "disk_bytes": int(disk_gib * GIB)}
    if model is not None:
        cache_bytes = None if cache_gib is None else int(cache_gib * GIB)
        return EngineSizes.of_model(model, cache_bytes=cache_bytes, **below, **room)
    cache_bytes = int((DEFAULT_CACHE_GIB if cache_gib is None else cache_gib) * GIB)
    return EngineSizes.released(cache_bytes, **below, **room)


def _costs(changes: tuple[str, ...]) -> Any:
    from trnrt_engine.simulate.costs import CostModel

    return _checked(CostModel, _numbers(changes, CostModel, option="--cost"), option="--cost")


def _numbers(changes: tuple[str, ...], struct: Any, *, option: str) -> dict[str, float]:
    """Read NAME=VALUE pairs for the numeric fields of a dataclass."""
    defaults: dict[str, Any] = {field.name: field.default for field in fields(struct)}
    given: dict[str, float] = {}
    for change in changes:
        name, _, value = change.partition("=")
        if name not in defaults:
            raise click.BadParameter(
                f"{name} is none of {', '.join(sorted(defaults))}", param_hint=option
            )
        try:
            given[name] = type(defaults[name])(value)
        except ValueError as error:
            raise click.BadParameter(f"{change}: {error}", param_hint=option) from error
    return given


def _checked(struct: Any, given: dict[str, float], *, option: str) -> Any:
    try:
        return struct(**given)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from error
