"""Settings: one table, one order of precedence, ladders that fit the model."""

import itertools

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from trnrt_kernels.errors import OptionError
from trnrt_kernels.serving import GRID, OPTIONS, ServingShape, config_file_option, options


@click.command()
@config_file_option
@options("max_num_seqs", "dtype", "max_model_len")
def command(max_num_seqs, dtype, max_model_len):
    click.echo(f"{max_num_seqs} {dtype} {max_model_len}")


def run(*arguments, **environment):
    return CliRunner().invoke(command, list(arguments), env=environment)


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "trnrt.toml"
    path.write_text('max-num-seqs = 3\ndtype = "float32"\n')
    return str(path)


def test_defaults_apply_where_nothing_is_said():
    assert run().output == "12 auto None\n"


def test_file_is_above_defaults(config_file):
    assert run("--config", config_file).output == "3 float32 None\n"


def test_environment_is_above_the_file(config_file):
    assert run("--config", config_file, TRNRT_MAX_NUM_SEQS="5").output == "5 float32 None\n"


def test_flag_is_above_the_environment(config_file):
    result = run("--config", config_file, "--max-num-seqs", "7", TRNRT_MAX_NUM_SEQS="5")
    assert result.output == "7 float32 None\n"


def test_file_may_come_from_the_environment(config_file):
    assert run(TRNRT_CONFIG=config_file).output == "3 float32 None\n"


def test_bad_value_in_the_environment_stops_and_names_it():
    result = run(TRNRT_MAX_NUM_SEQS="many")
    assert result.exit_code == 2
    assert "TRNRT_MAX_NUM_SEQS" in result.output
    assert "many" in result.output


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("max_num_seqs = 0", ["max_num_seqs", "0"]),
        ('dtype = "int4"', ["dtype", "int4"]),
        ("max_num_seqs = [1]", ["max_num_seqs", "[1]"]),
        ("max_num_seqs = true", ["max_num_seqs", "True", "integer"]),
        ("max_num_seqs = 2.5", ["max_num_seqs", "2.5", "integer"]),
        ("max_seqs = 3", ["unknown names: max_seqs"]),
        ("max_num_seqs = ", ["cannot read"]),
    ],
)
def test_bad_file_stops_and_names_file_and_value(tmp_path, content, named):
    path = tmp_path / "settings.toml"
    path.write_text(content)
    # a good value elsewhere does not excuse the bad one
    result = run("--config", str(path), "--max-num-seqs", "2", "--dtype", "auto")
    assert result.exit_code == 2
    unwrapped = " ".join(result.output.split())
    for text in ["settings.toml", *named]:
        assert text in unwrapped


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *itertools.product(
            ["cache_gib", "cache_host_gib", "cache_disk_gib"], ["nan", "inf", "-1", "1e300"]
        ),
        *(("cache_gib", "0"), ("cache_disk_gib", "0")),
    ],
)
def test_memory_that_is_no_number_of_gib_is_refused(name, value):
    with pytest.raises(click.BadParameter, match=r"finite|range"):
        OPTIONS[name].type.convert(value, None, None)


def test_missing_file_is_named():
    result = run("--config", "/nowhere/settings.toml")
    assert result.exit_code == 2
    assert "/nowhere/settings.toml" in result.output


def test_every_option_has_a_flag_an_environment_name_and_help():
    for name, option in OPTIONS.items():
        assert option.name == name
        assert option.flag == "--" + name.replace("_", "-")
        assert option.env_name == "TRNRT_" + name.upper()
        assert option.help


def resolve(**changes):
    settings = {"window": 1_048_576, "index_kpool": 4, "backend": "cpu", "dtype": "bfloat16"}
    return ServingShape.resolve(**settings | changes)


def test_released_model_has_the_designed_ladders():
    shape = resolve()
    assert shape.prefill_buckets == (64, 128, 256, 512, 1024, 2048)
    assert shape.decode_buckets == (1, 2, 4, 8, 12)
    assert shape.context_buckets == tuple(2**bits for bits in range(13, 21))
    assert shape.page_size == 256
    assert shape.num_scratch == 12
    trn2 = resolve(backend="trn2")
    assert trn2.prefill_buckets == (512, 1024, 2048, 4096)
    assert trn2.decode_buckets == (4, 8, 12)
    assert trn2.context_buckets == (8192, 32_768, 131_072, 524_288, 1_048_576)


def test_strict_has_scratch_for_rows_that_fill_up_a_tile():
    assert resolve(numeric_mode="strict", max_num_seqs=1).num_scratch == 16
    assert resolve(numeric_mode="fast", max_num_seqs=1).num_scratch == 1


def test_tiny_model_has_smaller_ladders():
    shape = resolve(window=1000, max_num_seqs=3)
    assert shape.page_size == 64
    assert shape.prefill_buckets == (64, 128, 256, 512, 1024)
    assert shape.decode_buckets == (1, 2, 3)
    assert shape.context_buckets == (512, 1024)
    assert shape.max_pages_per_seq == 16


@given(
    window=st.integers(1, 2_000_000),
    index_kpool=st.sampled_from([1, 4, 16, 48]),
    max_num_seqs=st.integers(1, 40),
    rows=st.one_of(st.none(), st.integers(64, 5000)),
    backend=st.sampled_from(["cpu", "trn2"]),
)
def test_buckets_hold_every_step(window, index_kpool, max_num_seqs, rows, backend):
    shape = resolve(
        window=window,
        index_kpool=index_kpool,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=rows,
        backend=backend,
    )
    for ladder in (shape.prefill_buckets, shape.decode_buckets, shape.context_buckets):
        assert list(ladder) == sorted(set(ladder))
    assert shape.decode_buckets[-1] == max_num_seqs
    assert shape.context_buckets[-1] >= window
    assert shape.page_size % GRID == 0
    assert shape.page_size % index_kpool == 0
    assert all(tokens % shape.page_size == 0 for tokens in shape.context_buckets)
    assert all(tokens % GRID == 0 for tokens in shape.prefill_buckets)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"max_model_len": 2_000_000}, "max_model_len is 2000000.*window is 1048576"),
        ({"backend": "auto"}, "backend is 'auto'"),
        ({"dtype": "auto"}, "dtype is 'auto'"),
        ({"numeric_mode": "exact"}, "numeric_mode is 'exact'"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
    ],
)
def test_value_out_of_range_is_named(changes, named):
    with pytest.raises(OptionError, match=named):
        resolve(**changes)


def test_context_parallel_must_divide_tensor_parallel():
    with pytest.raises(OptionError, match=r"cp_size \(3\) does not divide tp_size \(4\)"):
        ServingShape(
            backend="cpu",
            dtype="float32",
            numeric_mode="fast",
            max_num_seqs=1,
            max_model_len=64,
            max_num_batched_tokens=64,
            tp_size=4,
            cp_size=3,
        )
