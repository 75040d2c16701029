from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnrt_router.affinity import (
    MAX_KEY_CHARS,
    Affinity,
    Candidate,
    RouteKey,
    prefix_hashes,
    session_key,
)
from trnrt_router.errors import InvalidRequest

LADDER = [
    ("body", "session_id"),
    ("header", "x-session-id"),
    ("header", "x-session-affinity"),
    ("header", "x-dynamo-session-id"),
    ("header", "x-smg-routing-key"),
    ("body", "prompt_cache_key"),
    ("header", "x-correlation-id"),
]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def idle(*names: str) -> list[Candidate]:
    return [Candidate(name, 0, 12) for name in names]


def home_of(affinity: Affinity, key: RouteKey, candidates: list[Candidate]) -> str:
    """Route one request and bind it, as the pool does."""
    home = affinity.rank(key, candidates)[0]
    affinity.bind(key, home)
    return home


@pytest.mark.parametrize("rung", range(len(LADDER)), ids=[name for _, name in LADDER])
def test_first_rung_that_is_present_is_the_session(rung):
    body, headers = {}, {}
    for place, name in LADDER[rung:]:
        (body if place == "body" else headers)[name] = f"value of {name}"
    assert session_key(body, headers) == (f"value of {LADDER[rung][1]}", None)


def test_user_is_not_a_session_key_and_nothing_means_no_session():
    assert session_key({"user": "u"}, {"user": "u", "x-request-id": "r"}) == (None, None)
    assert session_key({"session_id": ""}, {"x-session-id": ""}) == (None, None)


@pytest.mark.parametrize(("place", "name"), [*LADDER, ("header", "x-dynamo-parent-session-id")])
def test_key_that_is_too_long_is_refused(place, name):
    long = {name: "x" * (MAX_KEY_CHARS + 1)}
    with pytest.raises(InvalidRequest) as caught:
        session_key(long if place == "body" else {}, long if place == "header" else {})
    assert caught.value.param == name


def test_session_stays_where_it_was_served_even_when_that_engine_is_busier():
    affinity = Affinity()
    affinity.bind(RouteKey(session="s"), "b")
    busy = [Candidate("a", 0, 12), Candidate("b", 40, 12)]
    assert affinity.rank(RouteKey(session="s"), busy) == ["b", "a"]
    assert affinity.rank(RouteKey(session="S"), busy)[0] == "a"  # equality is exact


def test_session_of_a_dead_engine_moves_and_stays_moved():
    affinity = Affinity()
    key = RouteKey(session="s")
    affinity.bind(key, "a")
    assert home_of(affinity, key, idle("b")) == "b"
    assert home_of(affinity, key, idle("a", "b")) == "b"


def test_sub_agent_follows_its_parent_until_it_has_a_home_of_its_own():
    affinity = Affinity()
    affinity.bind(RouteKey(session="root"), "b")
    child = RouteKey(session="child", parent="root")
    assert home_of(affinity, child, idle("a", "b")) == "b"
    affinity.bind(RouteKey(session="root"), "a")
    assert home_of(affinity, child, idle("a", "b")) == "b"


def test_new_key_goes_to_the_longest_known_prefix_then_to_the_lighter_engine():
    affinity = Affinity()
    prompt = list(range(300))
    affinity.bind(RouteKey(prefixes=prefix_hashes(prompt[:128])), "a")
    affinity.bind(RouteKey(prefixes=prefix_hashes(prompt)), "b")
    key = RouteKey(prefixes=prefix_hashes(prompt + [1] * 100))
    assert affinity.rank(key, [Candidate("a", 0, 12), Candidate("b", 5, 12)])[0] == "b"
    stranger = RouteKey(prefixes=prefix_hashes([9] * 300))
    assert affinity.rank(stranger, [Candidate("a", 3, 12), Candidate("b", 2, 12)])[0] == "b"


def test_full_prefix_holder_gives_way_to_an_engine_with_a_free_slot():
    affinity = Affinity()
    prefixes = prefix_hashes(list(range(640)))
    affinity.bind(RouteKey(prefixes=prefixes), "a")
    key = RouteKey(session="new", prefixes=prefixes)
    assert affinity.rank(key, [Candidate("a", 12, 12), Candidate("b", 3, 12)])[0] == "b"
    assert affinity.rank(key, [Candidate("a", 12, 12), Candidate("b", 13, 12)])[0] == "a"


def test_sessions_that_come_one_by_one_are_spread():
    affinity = Affinity()
    homes = [home_of(affinity, RouteKey(session=str(n)), idle("a", "b")) for n in range(10)]
    assert homes.count("a") == homes.count("b") == 5


def test_prefixes_of_a_dead_engine_are_forgotten():
    affinity = Affinity()
    shared, own = prefix_hashes([1] * 128), prefix_hashes([2] * 128)
    for engine in ("a", "b"):
        affinity.bind(RouteKey(prefixes=shared), engine)
    affinity.bind(RouteKey(prefixes=own), "a")
    light_b = [Candidate("a", 1, 12), Candidate("b", 0, 12)]
    light_a = [Candidate("a", 0, 12), Candidate("b", 1, 12)]
    assert affinity.rank(RouteKey(prefixes=own), light_b)[0] == "a"
    affinity.forget_cache_of("a")
    assert affinity.rank(RouteKey(prefixes=own), light_b)[0] == "b"
    assert affinity.rank(RouteKey(prefixes=shared), light_a)[0] == "b"


def test_table_is_bounded_and_the_oldest_session_goes_first():
    affinity = Affinity(max_sessions=100)
    for n in range(1000):
        affinity.bind(RouteKey(session=f"s{n}"), "a")
        affinity.bind(RouteKey(session="keep"), "b")
    assert len(affinity) == 100
    assert affinity.bound_engine("keep") == "b"
    assert affinity.bound_engine("s0") is None


def test_idle_sessions_expire():
    clock = Clock()
    affinity = Affinity(clock=clock, max_idle_s=60.0)
    affinity.bind(RouteKey(session="old"), "b")
    clock.now += 30
    affinity.bind(RouteKey(session="young"), "b")
    clock.now += 31
    affinity.rank(RouteKey(), idle("a", "b"))
    assert affinity.bound_engine("old") is None
    assert affinity.bound_engine("young") == "b"


def test_prefix_table_is_bounded():
    affinity = Affinity(max_prefixes=50)
    for n in range(40):
        affinity.bind(RouteKey(prefixes=prefix_hashes([n] * 640)), "a")
    assert len(affinity._prefixes) == 50


def test_million_token_prompt_has_about_a_thousand_prefixes():
    assert 1000 < len(prefix_hashes([7] * 1_000_000)) < 1200


@given(st.lists(st.integers(0, 200_000), max_size=700), st.integers(0, 700))
def test_prefixes_of_a_prompt_begin_with_those_of_its_beginning(tokens, cut):
    whole, part = prefix_hashes(tokens), prefix_hashes(tokens[:cut])
    assert whole[: len(part)] == part


def test_salt_separates_prefixes():
    tokens = list(range(64))
    assert prefix_hashes(tokens, salt="x") != prefix_hashes(tokens)
