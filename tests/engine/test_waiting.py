"""Who is admitted next, and whose chunk is next."""

from __future__ import annotations

import random

import pytest

from trnrt_engine.api import EngineRequest
from trnrt_engine.fair_share import FairShare
from trnrt_engine.request import Request
from trnrt_engine.waiting import (
    AGED_TURN,
    AGING_S,
    MAX_AGING_LEVELS,
    PrefillTurns,
    WaitingQueue,
    aged_arrival_s,
)


class Line:
    """A queue, its tenants' shares, and requests by name."""

    def __init__(self) -> None:
        self.shares = FairShare()
        self.queue = WaitingQueue(self.shares)
        self.requests: dict[str, Request] = {}
        self.now_s = 0.0

    def add(
        self, name: str, *, tenant: str = "", priority: int = 0, num_tokens: int = 10
    ) -> Request:
        self.now_s += 0.001
        spec = EngineRequest(
            request_id=name, token_ids=[1] * num_tokens, tenant=tenant, priority=priority
        )
        request = Request(spec, self.now_s, max_output_tokens=1, stop_ids=frozenset())
        self.shares.enter(tenant)
        self.queue.add(request)
        self.requests[name] = request
        return request

    def take(self) -> str:
        request = self.queue.next()
        assert request is not None
        self.queue.take(request)
        self.shares.promise(request.tenant, request.num_prompt_tokens)
        return request.request_id

    def take_all(self) -> list[str]:
        return [self.take() for _ in range(len(self.queue))]


def test_one_tenant_is_served_in_order_of_arrival() -> None:
    line = Line()
    names = [line.add(f"r{index}").request_id for index in range(20)]
    assert [r.request_id for r in line.queue.in_order()] == names
    assert line.take_all() == names
    assert line.queue.next() is None


def test_lower_priority_numbers_go_first() -> None:
    line = Line()
    for name, priority in [("late", 3), ("normal", 0), ("urgent", -5), ("second", 0)]:
        line.add(name, priority=priority)
    assert line.take_all() == ["urgent", "normal", "second", "late"]


def test_tenants_share_by_tokens_and_not_by_requests() -> None:
    line = Line()
    for index in range(6):
        line.add(f"big{index}", tenant="a", num_tokens=100)
    for index in range(30):
        line.add(f"small{index}", tenant="b", num_tokens=20)
    order = [r.request_id for r in line.queue.in_order()]
    taken = line.take_all()
    first = taken[:24]
    assert abs(sum(n.startswith("big") for n in first) * 100 - 20 * 20) <= 100
    assert [n for n in taken if n.startswith("big")] == [f"big{i}" for i in range(6)]
    assert abs(sum(n.startswith("big") for n in order[:24]) * 100 - 20 * 20) <= 100


def test_flood_of_one_tenant_does_not_delay_another() -> None:
    line = Line()
    for index in range(1000):
        line.add(f"flood{index}", tenant="a")
    assert line.take() == "flood0"
    line.add("other", tenant="b")
    assert line.take() == "other"


def test_oldest_has_every_eighth_turn_so_new_tenants_cannot_starve_it() -> None:
    line = Line()
    line.shares.enter("old")
    line.shares.enter("seed")
    line.shares.count("old", 10_000, is_promised=False)
    line.add("waits", tenant="old")
    taken = []
    for index in range(AGED_TURN):
        line.add(f"new{index}", tenant=f"t{index}")
        taken.append(line.take())
    assert taken.index("waits") == AGED_TURN - 1


def test_priority_improves_by_one_for_every_ten_seconds() -> None:
    line = Line()
    patient = line.add("patient", priority=5)
    for index in range(100):
        line.add(f"quick{index}")
    for _ in range(3 * AGED_TURN):
        assert line.take() != "patient"  # not yet older than five levels
    line.now_s = 5 * AGING_S + 1.0
    for request in list(line.queue):
        if request is not patient:
            line.queue.remove(request)
    taken = []
    for index in range(AGED_TURN):
        line.add(f"later{index}")
        taken.append(line.take())
    assert "patient" in taken


def test_extreme_priorities_age_within_a_bound() -> None:
    line = Line()
    last, first = line.add("last", priority=2**40), line.add("first", priority=-(2**40))
    bound_s = MAX_AGING_LEVELS * AGING_S
    assert aged_arrival_s(last) - last.arrival_s == bound_s
    assert aged_arrival_s(first) - first.arrival_s == -bound_s


def test_next_stays_next_while_it_finds_no_room() -> None:
    line = Line()
    line.add("large", tenant="a")
    assert line.queue.next().request_id == "large"
    line.add("small", tenant="b")
    line.shares.count("a", 1000, is_promised=False)
    assert line.queue.next().request_id == "large"
    line.add("urgent", tenant="b", priority=-1)
    assert line.queue.next().request_id == "urgent"
    line.queue.remove(line.requests["urgent"])
    assert line.queue.next().request_id == "small"  # chosen anew, by share


def test_oldest_at_its_turn_gives_way_to_nobody() -> None:
    line = Line()
    for index in range(AGED_TURN):
        line.add(f"r{index}")
    for _ in range(AGED_TURN - 1):
        line.take()
    assert line.queue.next().request_id == f"r{AGED_TURN - 1}"
    line.add("urgent", priority=-100)
    assert line.queue.next().request_id == f"r{AGED_TURN - 1}"


def test_who_is_set_aside_lets_others_pass_and_comes_back_in_front() -> None:
    line = Line()
    for name in ("a", "b", "c"):
        line.add(name)
    first = line.queue.next()
    line.queue.set_aside(first)
    assert (len(line.queue), list(line.queue.aside)) == (3, [first])
    assert first in line.queue
    assert line.take() == "b"
    assert line.queue.next().request_id == "c"
    line.queue.put_back(first)
    assert line.queue.aside == []
    assert line.take_all() == ["a", "c"]


def test_put_back_is_in_front_of_its_own_priority_only() -> None:
    line = Line()
    late = line.add("late", priority=1)
    line.queue.take(late)
    line.add("urgent")
    line.add("other", priority=1)
    line.queue.put_back(late)
    assert [r.request_id for r in line.queue.in_order()] == ["urgent", "late", "other"]
    assert line.take_all() == ["urgent", "late", "other"]


@pytest.mark.parametrize("seed", range(5))
def test_queue_is_empty_when_all_that_came_has_left(seed: int) -> None:
    chance = random.Random(seed)
    line = Line()
    inside: set[str] = set()
    for index in range(600):
        name = f"r{index}"
        line.add(name, tenant=chance.choice("abc"), priority=chance.randint(-2, 2))
        inside.add(name)
        match chance.randint(0, 3):
            case 0:
                inside.remove(line.take())
            case 1:
                gone = line.requests[chance.choice(sorted(inside))]
                line.queue.remove(gone)
                inside.remove(gone.request_id)
            case 2 if (head := line.queue.next()) is not None:
                line.queue.set_aside(head)
            case 3 if line.queue.aside:
                line.queue.put_back(chance.choice(line.queue.aside))
        assert {r.request_id for r in line.queue} == inside
        assert {r.request_id for r in line.queue.in_order()} == inside
        assert len(line.queue) == len(inside)
    for request in line.queue.aside:
        line.queue.put_back(request)
    assert {line.take() for _ in range(len(inside))} == inside
    assert (len(line.queue), line.queue.next(), line.queue.in_order()) == (0, None, [])


def turns_of(line: Line, *names: str, count: int) -> list[str]:
    turns = PrefillTurns(line.shares)
    prefilling = [line.requests[name] for name in names]
    taken = []
    for _ in range(count):
        taken.append(turns.next(prefilling).request_id)
        turns.count()
    return taken


def test_short_prompt_has_every_second_chunk_and_nobody_starves() -> None:
    line = Line()
    line.add("long", num_tokens=1000)
    line.add("urgent", num_tokens=1000, priority=-1)
    line.add("short", num_tokens=10)
    assert turns_of(line, "long", "urgent", "short", count=8) == [
        *("urgent", "short", "urgent", "short"),
        *("urgent", "short", "urgent", "short"),
    ]
    line.requests["long"].arrival_s -= AGING_S + 1.0
    assert turns_of(line, "long", "urgent", "short", count=4) == [
        *("urgent", "short", "long", "short")
    ]


def test_chunks_of_one_priority_go_by_the_tenants_shares() -> None:
    line = Line()
    line.add("a", tenant="a", num_tokens=500)
    line.add("b", tenant="b", num_tokens=500)
    line.shares.count("a", 64, is_promised=True)
    assert turns_of(line, "a", "b", count=1) == ["b"]
    line.shares.count("b", 128, is_promised=True)
    assert turns_of(line, "a", "b", count=1) == ["a"]
