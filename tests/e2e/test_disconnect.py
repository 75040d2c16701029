"""A client that leaves frees its engine, streaming or not."""

from __future__ import annotations

import openai
import pytest

HI = [{"role": "user", "content": "hi"}]
ENDLESS = {"ignore_eos": True}


def idle(server) -> bool:
    """Whether no engine holds a request, a page or a state slot for one.

    What is neither free nor held by a request is in the prefix cache.
    """
    names = {"pages": "cached_pages", "state_slots": "cached_bundles"}
    return server.metric("trnrt_engine_running_requests") == 0 and all(
        server.metric(f"trnrt_engine_free_{name}") + server.metric(f"trnrt_engine_{cached}")
        == server.metric(f"trnrt_engine_total_{name}")
        for name, cached in names.items()
    )


@pytest.mark.parametrize("n", [1, 3])
def test_leaving_a_stream(server, client, n):
    aborted = server.metric("trnrt_engine_requests_aborted_total")
    stream = client.chat.completions.create(
        model="glm", messages=HI, max_tokens=3000, stream=True, n=n, extra_body=ENDLESS
    )
    next(iter(stream))
    stream.close()
    server.wait_until(lambda: idle(server))
    server.wait_until(lambda: server.metric("trnrt_engine_requests_aborted_total") == aborted + n)


def test_leaving_before_an_answer_that_does_not_stream(server):
    aborted = server.metric("trnrt_engine_requests_aborted_total")
    with server.client() as client, pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=1.5).chat.completions.create(
            model="glm", messages=HI, max_tokens=3000, extra_body=ENDLESS
        )
    server.wait_until(lambda: server.metric("trnrt_engine_requests_aborted_total") == aborted + 1)
    server.wait_until(lambda: idle(server))
