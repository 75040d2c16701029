"""A plan run to its end over scripted engines, without HTTP."""

from __future__ import annotations

import asyncio

import pytest

from support.demo_folder import DEMO_DIR
from support.scripted_engine import Script, ScriptedEngine, ScriptedEngineClient
from trnrt_router.affinity import Affinity
from trnrt_router.engine_pool import EnginePool
from trnrt_router.errors import EngineFailed, EngineLost
from trnrt_router.generation import Generation
from trnrt_router.requests import RequestPlanner

HI = b'{"messages": [{"role": "user", "content": "hi"}]'


@pytest.fixture(scope="module")
def planner():
    return RequestPlanner.from_dir(DEMO_DIR, model_name="glm", max_choices=8)


def run(planner, engine_info, *scripts: Script, body: bytes = HI + b"}"):
    """Run one request over an engine per script; return (generation, events, clients)."""

    async def main():
        engines = [ScriptedEngine(info=engine_info, script=script) for script in scripts]
        clients = [ScriptedEngineClient(engine, str(n)) for n, engine in enumerate(engines)]
        pool = EnginePool(clients, Affinity())
        pool.start()
        generation = Generation(
            planner.plan_chat(body, {}, pool.info), pool=pool, tokenizer=planner.tokenizer
        )
        events = []
        try:
            await generation.start()
            async with asyncio.timeout(30):
                while not generation.is_finished:
                    events += await generation.events(1.0)
        finally:
            generation.close()
            await pool.close()
        return generation, events, clients

    return asyncio.run(main())


def test_step_of_many_tokens_ends_at_the_stop_string(planner, engine_info, words):
    group = words.tokenizer.encode_prompt("think</think>one STOP two three")
    body = HI + b', "stop": "STOP", "logprobs": true}'
    generation, events, clients = run(planner, engine_info, Script(steps=[group]), body=body)
    [event] = events
    assert (event.reasoning, event.content, event.finish_reason) == ("think", "one ", "stop")
    assert len(event.logprobs) == generation.num_output_tokens < len(group)
    assert clients[0].engine.aborted == [generation.plan.requests[0].request_id]


def test_choice_that_ends_leaves_the_others_running(planner, engine_info, words):
    def by_choice(request):
        texts = ["a</think>b", "a</think>b c d e f"]
        return Script(steps=[*words.tokens(texts[request.choice_index]), [words.eos]])

    async def main():
        engine = ScriptedEngine(info=engine_info, script_for=by_choice)
        pool = EnginePool([ScriptedEngineClient(engine)], Affinity())
        pool.start()
        plan = planner.plan_chat(HI + b', "n": 2}', {}, pool.info)
        generation = Generation(plan, pool=pool, tokenizer=planner.tokenizer)
        await generation.start()
        texts = ["", ""]
        async with asyncio.timeout(30):
            while not generation.is_finished:
                for event in await generation.events(1.0):
                    texts[event.index] += event.content
        await pool.close()
        return texts, engine.aborted

    texts, aborted = asyncio.run(main())
    assert texts == ["b", "b c d e f"]
    assert aborted == []


def test_lost_engine_is_replaced_once_and_no_more(planner, engine_info, words):
    dies = Script(steps=words.tokens("a</think>b"), lose_engine_after=0)
    lives = Script(steps=[*words.tokens("a</think>b"), [words.eos]])
    generation, events, _ = run(planner, engine_info, dies, lives)
    assert generation.engine.name == "1"
    assert "".join(event.content for event in events) == "b"
    with pytest.raises(EngineLost):
        run(planner, engine_info, dies, dies)


def test_failure_of_one_choice_fails_the_request_and_stops_the_rest(planner, engine_info, words):
    failing = Script(steps=words.tokens("and on "), repeat=True, fail_after=3)
    with pytest.raises(EngineFailed, match="boom"):
        run(planner, engine_info, failing, body=HI + b', "n": 2}')
