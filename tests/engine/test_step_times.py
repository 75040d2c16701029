"""Estimates of step times: conservative, robust, and never stuck."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnrt_engine.step_times import MIN_SPEED_S, PrefillSpeed, StepTimes

seconds = st.floats(1e-6, 1e3)


def times() -> StepTimes:
    return StepTimes(
        prefill_buckets=(64, 128, 512), decode_buckets=(1, 2, 4), context_buckets=(512, 2048)
    )


def test_steps_are_known_by_what_they_are_padded_to() -> None:
    known = times()
    assert known.chunk_shape(0, 65) == (True, 128, 512)
    assert known.chunk_shape(448, 65) == (True, 128, 2048)
    assert known.chunk_shape(64, 448) == (True, 512, 512)
    assert known.decode_shape(3, 512) == (False, 4, 512)
    assert known.decode_shape(3, 513) == (False, 4, 2048)


def test_nothing_is_known_of_a_context_before_its_first_step() -> None:
    known = times()
    known.observe(known.chunk_shape(0, 64), 1.0)
    assert known.expect(known.chunk_shape(0, 64)) == 1.0
    assert known.expect(known.chunk_shape(1024, 64)) is None
    assert known.expect(known.decode_shape(1, 64)) is None


def test_rows_never_run_are_foreseen_from_those_of_their_context() -> None:
    known = times()
    known.observe(known.chunk_shape(0, 64), 1.0)
    assert known.expect(known.chunk_shape(0, 512)) == 8.0
    known.observe(known.chunk_shape(0, 512), 3.0)
    assert known.expect(known.chunk_shape(0, 128)) == 2.0
    known.observe(known.decode_shape(4, 100), 5.0)
    assert known.expect(known.decode_shape(1, 100)) == 5.0


def test_first_step_of_a_bucket_may_be_slow_for_it_warms_it_up() -> None:
    known = times()
    shape = known.chunk_shape(0, 64)
    known.observe(shape, 9.0)
    known.observe(shape, 1.0)
    assert known.expect(shape) == 1.0


def test_one_outlier_moves_an_estimate_little_and_a_change_moves_it_all_the_way() -> None:
    known = times()
    shape = known.chunk_shape(0, 64)
    for _ in range(5):
        known.observe(shape, 1.0)
    known.observe(shape, 100.0)
    assert known.expect(shape) < 1.5
    for _ in range(30):
        known.observe(shape, 10.0)
    assert known.expect(shape) == pytest.approx(10.0, rel=0.05)
    for _ in range(100):
        known.observe(shape, 2.0)
    assert known.expect(shape) == pytest.approx(2.0, rel=0.05)


def test_noise_is_met_from_above() -> None:
    known = times()
    shape = known.decode_shape(1, 100)
    for index in range(200):
        known.observe(shape, 1.2 if index % 4 == 0 else 1.0)
    assert 1.03 < known.expect(shape) <= 1.2


def test_bucket_that_was_slow_once_is_tried_again() -> None:
    known = times()
    large, small = known.chunk_shape(0, 512), known.chunk_shape(0, 64)
    known.observe(large, 100.0)
    for _ in range(400):
        known.observe(small, 1.0)
    assert known.expect(large) == pytest.approx(8.0, rel=0.05)


@given(measured=st.lists(seconds, min_size=1, max_size=40))
def test_estimate_stays_within_what_was_measured(measured: list[float]) -> None:
    known = times()
    shape = known.chunk_shape(0, 64)
    for value in measured:
        known.observe(shape, value)
    assert min(measured) * 0.999 <= known.expect(shape) <= max(measured) * 1.001


def test_step_without_duration_is_taken_as_it_is() -> None:
    known = times()
    shape = known.chunk_shape(0, 64)
    for value in (0.0, 0.0, 0.0, 3.0):
        known.observe(shape, value)
    assert known.expect(shape) == 3.0


@pytest.mark.parametrize("buckets", [(), (32,), (64, 100)], ids=str)
def test_chunks_off_the_grid_are_refused(buckets: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="prefill_buckets are"):
        StepTimes(prefill_buckets=buckets, decode_buckets=(1,), context_buckets=(512,))


def test_speed_counts_the_decodes_between_chunks_and_forgets_the_past() -> None:
    speed = PrefillSpeed()
    speed.observe(MIN_SPEED_S / 4, 1000)
    assert speed.tokens_per_s is None
    for _ in range(100):
        speed.observe(1.0, 300)
        speed.observe(2.0, 0)
    assert speed.tokens_per_s == pytest.approx(100.0, rel=0.05)
    for _ in range(300):
        speed.observe(1.0, 500)
    assert speed.tokens_per_s == pytest.approx(500.0, rel=0.01)


def test_speed_of_no_token_is_not_known() -> None:
    speed = PrefillSpeed()
    speed.observe(100.0, 0)
    assert speed.tokens_per_s is None
