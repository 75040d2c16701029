from __future__ import annotations

import json

import msgspec
import pytest

from support.demo_folder import DEMO_DIR
from trnrt_router.errors import ContextTooLong, InvalidRequest, NotFound
from trnrt_router.protocol import CacheControl, CacheMode, SamplingParams
from trnrt_router.requests import RequestPlanner
from trnrt_router.tenant import tenant_of

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def planner():
    return RequestPlanner.from_dir(DEMO_DIR, model_name="glm", max_choices=8)


@pytest.fixture
def chat(planner, engine_info):
    def plan(headers=None, info=engine_info, **fields):
        body = json.dumps({"messages": HI, **fields}).encode()
        return planner.plan_chat(body, headers or {}, info)

    return plan


def test_every_field_of_a_request_reaches_the_engine(chat):
    asked = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "seed": 11,
        "max_tokens": 9,
        "min_tokens": 2,
        "ignore_eos": True,
    }
    plan = chat(
        **asked,
        logit_bias={"5": -1},
        stop_token_ids=[6],
        logprobs=True,
        top_logprobs=4,
        n=2,
        session_id="s",
        cache_salt="salt",
        cache={"mode": "write", "ttl_s": 60, "pin": True},
        priority=3,
    )
    first, second = plan.requests
    assert first.sampling == SamplingParams(
        **asked, logit_bias={5: -1.0}, stop_token_ids=(6,), num_logprobs=4
    )
    assert (first.choice_index, second.choice_index) == (0, 1)
    assert first.request_id != second.request_id
    assert (first.cache_salt, first.priority) == ("salt", 3)
    assert first.tenant == second.tenant == tenant_of("s", {})
    assert first.cache == CacheControl(mode=CacheMode.WRITE, ttl_s=60.0, pin=True, session_id="s")
    assert plan.route.session == "s"


@pytest.mark.parametrize(
    ("field", "control"),
    [
        (None, CacheControl()),
        ("read", CacheControl(mode=CacheMode.READ)),
        ("write", CacheControl()),
        ("off", CacheControl(mode=CacheMode.OFF)),
        ({}, CacheControl()),
        ({"mode": "off", "pin": False, "ttl_s": None}, CacheControl(mode=CacheMode.OFF)),
        ({"ttl_s": 0.5}, CacheControl(ttl_s=0.5)),
    ],
)
def test_cache_control_is_short_or_in_full(chat, field, control):
    assert chat(cache=field).requests[0].cache == control


def test_cache_knows_the_session_of_a_header(chat):
    plan = chat({"x-session-id": "from-header"}, cache={"pin": True})
    assert plan.requests[0].cache.session_id == "from-header"


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ("on", "cache"),
        (True, "cache"),
        ({"mode": "on"}, "cache.mode"),
        ({"ttl": 5}, "cache.ttl"),
        ({"ttl_s": 0}, "cache.ttl_s"),
        ({"ttl_s": -1}, "cache.ttl_s"),
        ({"ttl_s": "60"}, "cache.ttl_s"),
        ({"pin": "yes"}, "cache.pin"),
        ({"pin": True}, "cache.pin"),
        ({"mode": "read", "ttl_s": 5}, "cache.ttl_s"),
        ({"mode": "off", "pin": True}, "cache.pin"),
    ],
)
def test_wrong_cache_control_is_refused_by_name(planner, engine_info, field, param):
    for body, plan in (
        ({"messages": HI, "cache": field}, planner.plan_chat),
        ({"prompt": "hi", "cache": field}, planner.plan_completion),
    ):
        with pytest.raises(InvalidRequest) as refused:
            plan(json.dumps(body).encode(), {}, engine_info)
        assert (refused.value.status, refused.value.param) == (400, param)


def test_marks_reach_the_engine_of_a_chat_that_can_be_cached(planner, engine_info, chat):
    assert chat().requests[0].marks == []  # shorter than any cached prefix
    rules = {"role": "system", "content": "be brief. " * 40}
    requests = chat(messages=[rules, *HI], n=2).requests
    for request in requests:
        system_end, question_end = request.marks
        assert 64 < system_end < question_end < len(request.token_ids)
    long_text = json.dumps({"prompt": "be brief. " * 40}).encode()
    assert planner.plan_completion(long_text, {}, engine_info).requests[0].marks == []


def test_silence_takes_the_models_defaults(chat, engine_info):
    defaults = SamplingParams(temperature=0.6, top_p=0.95, top_k=20, repetition_penalty=1.05)
    info = msgspec.structs.replace(engine_info, default_sampling=defaults)
    [request] = chat(info=info).requests
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.6, 0.95, 20)
    assert sampling.repetition_penalty == 1.05
    [request] = chat(info=info, temperature=0, top_k=-1).requests
    assert (request.sampling.temperature, request.sampling.top_k) == (0.0, 0)


def test_unseeded_requests_are_seeded_and_differ(chat):
    seeds = {chat().requests[0].sampling.seed for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= seed < 2**32 for seed in seeds)


@pytest.mark.parametrize(("given", "seed"), [(5, 5), (-1, 2**32 - 1), (2**40 + 3, 3)])
def test_any_integer_is_a_seed(chat, given, seed):
    assert chat(seed=given).requests[0].sampling.seed == seed


def test_empty_nucleus_is_the_likeliest_token(chat):
    sampling = chat(top_p=0, temperature=1).requests[0].sampling
    assert (sampling.top_p, sampling.top_k) == (1.0, 1)


@pytest.mark.parametrize(("given", "top_k"), [(-1, 0), (5.0, 5), (2**63, None), (1e308, None)])
def test_top_k_fits_the_wire_and_the_step(chat, engine_info, given, top_k):
    expected = engine_info.vocab_size if top_k is None else top_k
    assert chat(top_k=given).requests[0].sampling.top_k == expected


def test_generation_is_clamped_and_so_is_what_must_be_generated(chat, engine_info):
    num_prompt = len(chat().requests[0].token_ids)
    info = msgspec.structs.replace(engine_info, max_model_len=num_prompt + 4)
    for fields in ({}, {"max_tokens": 100, "min_tokens": 50}):
        sampling = chat(info=info, **fields).requests[0].sampling
        assert sampling.max_tokens == 4
        assert sampling.min_tokens <= 4


def test_prompt_must_leave_room_for_one_token(chat, engine_info):
    num_prompt = len(chat().requests[0].token_ids)
    fits = msgspec.structs.replace(engine_info, max_model_len=num_prompt + 1)
    assert chat(info=fits).requests[0].sampling.max_tokens == 1
    with pytest.raises(ContextTooLong) as caught:
        chat(info=msgspec.structs.replace(engine_info, max_model_len=num_prompt))
    assert f"{num_prompt} tokens" in caught.value.message
    assert f"has {num_prompt};" in caught.value.message


def test_refusal_without_tokenizing_is_right(planner, engine_info):
    """A prompt is refused early only if its real count is beyond the window too."""
    for text in ("a" * 20_000, "lorem ipsum " * 2000, "\u4f60" * 5000, "e\u0301" * 9000):
        body = json.dumps({"prompt": text}).encode()
        for window in (100, 500, 1000, 5000):
            info = msgspec.structs.replace(engine_info, max_model_len=window)
            fits = len(planner.tokenizer.encode_text(text)) < window
            if fits:
                planner.plan_completion(body, {}, info)
            else:
                with pytest.raises(ContextTooLong):
                    planner.plan_completion(body, {}, info)


def test_other_model_names_are_not_found(chat):
    assert chat(model="glm").model == "glm"
    with pytest.raises(NotFound, match="other"):
        chat(model="other")


def test_prefixes_follow_the_prompt_and_the_salt(chat):
    long = [{"role": "user", "content": "many words " * 100}]
    plain, again, salted = (
        chat(messages=long),
        chat(messages=long),
        chat(messages=long, cache_salt="x"),
    )
    assert plain.route.prefixes == again.route.prefixes != salted.route.prefixes
