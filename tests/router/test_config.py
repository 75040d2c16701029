from __future__ import annotations

import os
from pathlib import Path

import pytest

from trnrt_router.config import RouterConfig, engine_environment
from trnrt_router.errors import ConfigError


@pytest.mark.parametrize(
    "bad",
    [
        {"served_model_name": ""},
        {"keepalive_s": 0},
        {"max_body_bytes": 0},
        {"max_choices": 0},
        {"first_byte_wait_s": -1},
        {"inline_bytes": -1},
    ],
    ids=lambda bad: next(iter(bad)),
)
def test_value_that_cannot_be_used_is_named(bad):
    settings = {"model_dir": Path("."), "served_model_name": "m"} | bad
    with pytest.raises(ConfigError, match=next(iter(bad))):
        RouterConfig(**settings)


def test_threads_of_the_box_are_divided_by_the_engines():
    cores = len(os.sched_getaffinity(0))
    assert engine_environment(1, given={})["OMP_NUM_THREADS"] == str(cores)
    assert engine_environment(10 * cores, given={})["OMP_NUM_THREADS"] == "1"


def test_threads_of_an_engine_do_not_spin():
    assert engine_environment(1, given={})["OMP_WAIT_POLICY"] == "PASSIVE"


def test_environment_of_the_user_wins_but_the_config_file_is_not_passed_on():
    own = {"OMP_NUM_THREADS": "7", "OMP_WAIT_POLICY": "ACTIVE", "PATH": "/bin"}
    assert engine_environment(2, given=own | {"TRNRT_CONFIG": "serve.toml"}) == own
