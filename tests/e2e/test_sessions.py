"""Many conversations at once on two engines, each staying where it began."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

NUM_SESSIONS = 20


def test_sessions_stay_on_their_engine_and_use_both(server, client):
    def hold(number: int) -> tuple[str, list[str]]:
        messages = [{"role": "user", "content": f"session {number}"}]
        homes = []
        for turn in range(2):
            reply = client.chat.completions.with_raw_response.create(
                model="glm",
                messages=messages,
                max_tokens=6,
                extra_body={"session_id": f"session-{number}", "ignore_eos": True},
            )
            homes.append(reply.headers["x-trnrt-engine"])
            answer = reply.parse()
            assert answer.usage.completion_tokens == 6
            messages += [
                {"role": "assistant", "content": answer.choices[0].message.content},
                {"role": "user", "content": f"turn {turn}"},
            ]
        return homes[0], homes

    with ThreadPoolExecutor(NUM_SESSIONS) as threads:
        results = list(threads.map(hold, range(NUM_SESSIONS)))
    assert all(set(homes) == {first} for first, homes in results)
    assert {first for first, _ in results} == {"0", "1"}
    assert server.metric("trnrt_running_requests") == 0
