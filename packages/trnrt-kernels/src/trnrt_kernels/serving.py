"""Serving settings that meet in more than one package: one option table, one `ServingShape`.

`serve`, `engine` and `capture` build their command-line options from `OPTIONS`, so a model is
compiled for exactly what it is later served with. A value comes from the first of: flag, `TRNRT_*`
environment, configuration file, default. A bad value stops the start and names where it came from.
Imports no torch.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import click

from trnrt_kernels.errors import OptionError
from trnrt_kernels.numeric import CANDIDATE_TILES, NumericMode

F = TypeVar("F", bound=Callable[..., Any])

ENV_PREFIX = "TRNRT_"
GRID = 64  # prefill is cut at multiples of this, pages and buckets are multiples of it
MAX_EXPORTS = 4  # states a prefill chunk can export on the grid
PAGE_SIZE = 256
TINY_PAGE_SIZE = 64
TINY_WINDOW = 32_768  # below it the context ladder and the pages are finer

PREFILL_LADDERS = {"cpu": (64, 128, 256, 512, 1024, 2048), "trn2": (512, 1024, 2048, 4096)}
DECODE_LADDERS = {"cpu": (1, 2, 4, 8, 12), "trn2": (4, 8, 12)}
# Every sparse-attention query scores its whole bucket. Finer steps cost more graphs.
CONTEXT_LADDERS = {
    "cpu": (8192, 16_384, 32_768, 65_536, 131_072, 262_144, 524_288),
    "trn2": (8192, 32_768, 131_072, 524_288),
}
TINY_CONTEXT_LADDER = (512, 2048, 8192)
MAX_CACHE_GIB = 2**20


class FiniteRange(click.FloatRange):
    """A range of numbers; unlike click's it does not take nan for one of them."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One setting.

    Fields:
        name: parameter name; the flag and the environment variable follow from it.
        default: None where it depends on the model or the backend; `help` says on what.
        is_shape: whether it changes the compiled graphs; `capture` ignores the others.
    """

    name: str
    type: click.ParamType[Any]
    default: Any = None
    help: str
    is_shape: bool

    @property
    def flag(self) -> str:
        """Command-line spelling."""
        return "--" + self.name.replace("_", "-")

    @property
    def env_name(self) -> str:
        """Environment variable."""
        return ENV_PREFIX + self.name.upper()


_TABLE = (
    Option(
        name="backend",
        type=click.Choice(["auto", "cpu", "trn2"]),
        default="auto",
        help="What runs the model; auto takes trn2 where a Neuron device is found.",
        is_shape=True,
    ),
    Option(
        name="dtype",
        type=click.Choice(["auto", "float32", "bfloat16"]),
        default="auto",
        help="Activation dtype; auto is that of the checkpoint's unquantised matrices.",
        is_shape=True,
    ),
    Option(
        name="numeric_mode",
        type=click.Choice([mode.value for mode in NumericMode]),
        default="fast",
        help="strict: a request's tokens do not depend on what runs beside it, bit for bit.",
        is_shape=True,
    ),
    Option(
        name="max_num_seqs",
        type=click.IntRange(min=1),
        default=12,
        help="Sequences decoded at once.",
        is_shape=True,
    ),
    Option(
        name="prefill_ahead",
        type=click.IntRange(min=0),
        default=4,
        help="Sequences beyond those, computed up to their first token while they wait for a "
        "place in the batch.",
        is_shape=True,
    ),
    Option(
        name="max_model_len",
        type=click.IntRange(min=1),
        help="Longest prompt and output together, in tokens  [default: the model's window]",
        is_shape=True,
    ),
    Option(
        name="max_num_batched_tokens",
        type=click.IntRange(min=GRID),
        help="Prompt tokens computed in one step  [default: cpu 2048, trn2 4096]",
        is_shape=True,
    ),
    Option(
        name="max_decode_stall_ms",
        type=click.IntRange(min=1),
        default=500,
        help="Longest time between two tokens of a stream while prompts of others are computed, "
        "in milliseconds; prompts are cut into chunks that fit.",
        is_shape=False,
    ),
    Option(
        name="max_queue_prefill_s",
        type=FiniteRange(min=0, min_open=True),
        default=600.0,
        help="Requests are refused while the prompts taken before them need more than so many "
        "seconds to be computed, by the speed measured.",
        is_shape=False,
    ),
    Option(
        name="graphs",
        type=click.Choice(["auto", "compiled", "eager"]),
        default="auto",
        help="compiled: run compiled graphs or refuse; auto: run them where they are complete.",
        is_shape=False,
    ),
    Option(
        name="cache_gib",
        type=FiniteRange(min=0, min_open=True, max=MAX_CACHE_GIB),
        help="Memory for pages and states, in GiB  [default: what max_num_seqs sequences of the "
        "whole window need, at most half of the free memory]",
        is_shape=False,
    ),
    Option(
        name="prefix_cache",
        type=click.Choice(["on", "off"]),
        default="on",
        help="Whether prompts reuse what earlier ones with the same beginning computed.",
        is_shape=False,
    ),
    Option(
        name="cache_host_gib",
        type=FiniteRange(min=0, max=MAX_CACHE_GIB),
        default=0.0,
        help="Host memory in which cached prefixes are kept beside the device, in GiB; 0 is none.",
        is_shape=False,
    ),
    Option(
        name="cache_host_dir",
        type=click.Path(file_okay=False),
        help="Folder of that memory, best on a tmpfs; engines given the same one share it, and its "
        "size must be the same  [default: serve makes one for its engines]",
        is_shape=False,
    ),
    Option(
        name="cache_disk_gib",
        type=FiniteRange(min=0, min_open=True, max=MAX_CACHE_GIB),
        default=16.0,
        help="Most that cached prefixes take on disk, in GiB.",
        is_shape=False,
    ),
    Option(
        name="cache_disk_dir",
        type=click.Path(file_okay=False),
        help="Folder in which cached prefixes outlive a restart  [default: none, no disk is used]",
        is_shape=False,
    ),
    Option(
        name="exact_cache",
        type=click.Choice(["on", "off"]),
        default="off",
        help="on: no turn goes on from the state in which its session's last answer ended, so that "
        "a cached prefix never differs from a computed one by rounding.",
        is_shape=False,
    ),
    Option(
        name="swap_host_gib",
        type=FiniteRange(min=0, max=MAX_CACHE_GIB),
        help="Host memory for sequences that must give way to others, in GiB, taken when one does; "
        "without room they are computed again  [default: a quarter of the memory for pages and "
        "states]",
        is_shape=False,
    ),
)
OPTIONS: dict[str, Option] = {option.name: option for option in _TABLE}


def options(*names: str) -> Callable[[F], F]:
    """Add the named options of the table to a click command, in this order.

    Raises:
        KeyError: the table has no such option.
    """
    chosen = [OPTIONS[name] for name in names]

    def add_all(command: F) -> F:
        for option in reversed(chosen):
            command = click.option(
                option.flag,
                option.name,
                type=option.type,
                default=option.default,
                show_default=option.default is not None,
                envvar=option.env_name,
                show_envvar=True,
                help=option.help,
            )(command)
        return command

    return add_all


def config_file_option(command: F) -> F:
    """Add `--config FILE` to a click command: TOML settings below environment and flags."""
    return click.option(
        "--config",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar=f"{ENV_PREFIX}CONFIG",
        is_eager=True,
        expose_value=False,
        callback=_take_config_file,
        help="TOML file with any of these settings.",
    )(command)


def _take_config_file(ctx: click.Context, param: click.Parameter, value: Path | None) -> None:
    if value is None:
        return
    try:
        settings = read_config_file(value, {p.name or "": p for p in ctx.command.params}, ctx)
    except OptionError as error:
        raise click.BadParameter(str(error), ctx=ctx, param=param) from error
    ctx.default_map = {**(ctx.default_map or {}), **settings}


def read_config_file(
    path: Path, known: Mapping[str, click.Parameter], ctx: click.Context | None = None
) -> dict[str, Any]:
    """Read settings from a TOML file; names may be spelled with `-` or `_`.

    Raises:
        OptionError: unreadable, a name the command does not have, or a value it cannot take; the
            message names the file, the setting and its value.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OptionError(f"cannot read {path}: {error}") from error
    settings = {name.replace("-", "_"): value for name, value in raw.items()}
    if unknown := sorted(settings.keys() - known.keys()):
        raise OptionError(f"{path} sets unknown names: {', '.join(unknown)}")
    for name, value in settings.items():
        try:
            _refuse_loose_type(known[name].type, value)
            known[name].type_cast_value(ctx or click.Context(click.Command(None)), value)
        except (click.BadParameter, TypeError) as error:
            message = error.message if isinstance(error, click.BadParameter) else error
            raise OptionError(f"{path} sets {name} to {value!r}: {message}") from error
    return settings


def _refuse_loose_type(wanted: click.ParamType[Any], value: object) -> None:
    """Refuse what click would turn into a number and the file does not say: true, 2.5 for int."""
    if isinstance(wanted, click.types.IntParamType | click.types.FloatParamType) and (
        isinstance(value, bool)
        or (isinstance(value, float) and isinstance(wanted, click.types.IntParamType))
    ):
        raise TypeError(f"must be {wanted.name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingShape:
    """Everything about serving that changes a graph, with every `auto` resolved.

    Fields:
        max_num_seqs: sequences decoded at once. prefill_ahead: sequences held beside them.
        max_model_len: tokens of the longest sequence.
        max_num_batched_tokens: rows of the largest prefill bucket.
        page_size: tokens a cache page.
        tp_size, cp_size, lnc: rank layout; a cpu engine is one rank.
    """

    backend: str
    dtype: str
    numeric_mode: str
    max_num_seqs: int
    max_model_len: int
    max_num_batched_tokens: int
    prefill_ahead: int = 0
    page_size: int = PAGE_SIZE
    tp_size: int = 1
    cp_size: int = 1
    lnc: int = 1

    def __post_init__(self) -> None:
        for name, known in (
            ("backend", tuple(PREFILL_LADDERS)),
            ("dtype", ("float32", "bfloat16")),
            ("numeric_mode", tuple(NumericMode)),
        ):
            if getattr(self, name) not in known:
                raise OptionError(
                    f"{name} is {getattr(self, name)!r}, must be {' or '.join(known)}"
                )
        for name in ("max_num_seqs", "max_model_len", "tp_size", "cp_size", "lnc"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name} is {getattr(self, name)}, must be at least 1")
        if self.prefill_ahead < 0:
            raise OptionError(f"prefill_ahead is {self.prefill_ahead}, must be at least 0")
        for name in ("max_num_batched_tokens", "page_size"):
            if getattr(self, name) < GRID or getattr(self, name) % GRID:
                raise OptionError(f"{name} is {getattr(self, name)}, must be a multiple of {GRID}")
        if self.tp_size % self.cp_size:
            raise OptionError(f"cp_size ({self.cp_size}) does not divide tp_size ({self.tp_size})")

    @classmethod
    def resolve(
        cls,
        *,
        window: int,
        index_kpool: int,
        backend: str,
        dtype: str,
        numeric_mode: str = "fast",
        max_num_seqs: int = 12,
        prefill_ahead: int = 4,
        max_model_len: int | None = None,
        max_num_batched_tokens: int | None = None,
    ) -> Self:
        """Fill in what the settings leave to the model and the backend.

        Args:
            window: tokens the model was made for.
            index_kpool: tokens a pool; pages hold whole pools.
            backend, dtype: resolved, not "auto".

        Raises:
            OptionError: a value is out of range or beyond the window.
        """
        if max_model_len is not None and max_model_len > window:
            raise OptionError(
                f"max_model_len is {max_model_len}, but the model's window is {window}: "
                f"lower it or leave it out"
            )
        if backend not in PREFILL_LADDERS:
            raise OptionError(f"backend is {backend!r}, must be {' or '.join(PREFILL_LADDERS)}")
        length = max_model_len or window
        most_rows = max_num_batched_tokens or PREFILL_LADDERS[backend][-1]
        unit = math.lcm(GRID, index_kpool)
        page_size = PAGE_SIZE if window >= TINY_WINDOW else TINY_PAGE_SIZE
        return cls(
            backend=backend,
            dtype=dtype,
            numeric_mode=numeric_mode,
            max_num_seqs=max_num_seqs,
            prefill_ahead=prefill_ahead,
            max_model_len=length,
            max_num_batched_tokens=min(round_up(most_rows, GRID), round_up(length, GRID)),
            page_size=round_up(page_size, unit),
        )

    @property
    def prefill_buckets(self) -> tuple[int, ...]:
        """Rows a prefill chunk is padded to, ascending."""
        return _ladder(PREFILL_LADDERS[self.backend], self.max_num_batched_tokens)

    @property
    def decode_buckets(self) -> tuple[int, ...]:
        """Rows a decode batch is padded to, ascending."""
        return _ladder(DECODE_LADDERS[self.backend], self.max_num_seqs)

    @property
    def context_buckets(self) -> tuple[int, ...]:
        """Tokens a block table reaches, ascending; multiples of the page size."""
        is_tiny = self.max_model_len < TINY_WINDOW
        rungs = TINY_CONTEXT_LADDER if is_tiny else CONTEXT_LADDERS[self.backend]
        ladder = _ladder(rungs, self.max_model_len)
        return tuple(dict.fromkeys(round_up(tokens, self.page_size) for tokens in ladder))

    @property
    def max_live_seqs(self) -> int:
        """Sequences that hold a state slot at once."""
        return self.max_num_seqs + self.prefill_ahead

    @property
    def max_pages_per_seq(self) -> int:
        """Pages of the longest sequence."""
        return self.context_buckets[-1] // self.page_size

    @property
    def num_scratch(self) -> int:
        """Pages, and state slots, that belong to padding rows: one per row of the largest batch.

        In numeric mode strict a batch is padded further, at most to the largest row tile.
        """
        tile = CANDIDATE_TILES[-1] if self.numeric_mode == NumericMode.STRICT else 1
        return round_up(self.decode_buckets[-1], tile)


def round_up(value: int, unit: int) -> int:
    """The smallest multiple of `unit` that is not below `value`."""
    return -(-value // unit) * unit


def _ladder(rungs: tuple[int, ...], largest: int) -> tuple[int, ...]:
    """The rungs below `largest`, then `largest`."""
    return (*(rung for rung in rungs if rung < largest), largest)
