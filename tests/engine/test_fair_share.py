"""Counters of tenants."""

from __future__ import annotations

import pytest

from trnrt_engine.fair_share import MAX_IDLE_TENANTS, FairShare


def test_least_served_tenant_is_next_and_of_equals_the_first() -> None:
    shares = FairShare()
    for tenant in ("a", "b", "c"):
        shares.enter(tenant)
    assert shares.least_charged(["b", "a", "c"]) == "b"
    shares.count("b", 10, is_promised=False)
    shares.count("a", 20, is_promised=False)
    assert shares.least_charged(["a", "b", "c"]) == "c"
    assert shares.least_charged(["a", "b"]) == "b"


def test_promise_counts_where_the_next_is_admitted_and_once() -> None:
    shares = FairShare()
    shares.enter("a")
    shares.promise("a", 100)
    assert (shares.charged("a"), shares.computed("a")) == (100, 0)
    shares.count("a", 60, is_promised=True)
    assert (shares.charged("a"), shares.computed("a")) == (100, 60)
    assert shares.promised() == {"a": 40}
    shares.promise("a", -40)
    assert (shares.charged("a"), shares.computed("a")) == (60, 60)


def test_newcomer_and_idle_tenant_begin_with_the_lowest_counter_at_work() -> None:
    shares = FairShare()
    shares.enter("idle")
    shares.enter("busy")
    shares.enter("busier")
    shares.leave("idle")
    shares.count("busy", 1000, is_promised=False)
    shares.count("busier", 2000, is_promised=False)
    for tenant in ("idle", "new"):
        shares.enter(tenant)
        assert shares.computed(tenant) == shares.charged(tenant) == 1000


def test_debt_outlives_a_pause_while_others_work() -> None:
    shares = FairShare()
    shares.enter("a")
    shares.enter("b")
    shares.count("a", 500, is_promised=False)
    shares.leave("a")
    shares.enter("a")
    assert shares.computed("a") == 500
    shares.leave("a")
    shares.leave("b")
    shares.enter("a")  # nobody was there: nobody is owed
    assert shares.computed("a") == 0


def test_second_request_of_a_tenant_is_no_return() -> None:
    shares = FairShare()
    shares.enter("a")
    shares.enter("b")
    shares.count("b", 100, is_promised=False)
    shares.leave("b")
    shares.enter("a")
    shares.leave("a")
    assert shares.computed("a") == 0
    shares.leave("a")
    with pytest.raises(KeyError):
        shares.computed("a")


def test_memory_of_idle_tenants_is_bounded() -> None:
    shares = FairShare()
    shares.enter("stays")
    for index in range(MAX_IDLE_TENANTS + 10):
        shares.enter(f"t{index}")
        shares.count(f"t{index}", 1, is_promised=False)
        shares.leave(f"t{index}")
    shares.enter("t5")
    shares.enter("t15")
    assert (shares.computed("t5"), shares.computed("t15")) == (0, 1)
