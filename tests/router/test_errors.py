"""Tests of the errors a client is told."""

from __future__ import annotations

from trnrt_router.errors import MAX_MESSAGE_CHARS, InvalidRequest


def test_short_message_is_told_whole():
    assert InvalidRequest("n is 0, must be at least 1").reply().error.message == (
        "n is 0, must be at least 1"
    )


def test_long_value_is_not_sent_back_whole():
    told = InvalidRequest(f"model {'x' * 10**6} is not served: use glm").reply().error.message
    assert len(told) < MAX_MESSAGE_CHARS + 50
    assert told.startswith("model x")
    assert told.endswith("is not served: use glm")
