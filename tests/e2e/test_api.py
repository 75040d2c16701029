"""The real client against real processes: every field of the API that a model can honour."""

from __future__ import annotations

import openai
import pytest

HI = [{"role": "user", "content": "Hello, who are you?"}]
# The tiny model's weights are random: it never closes its thinking. A continued message begins
# in the content.
CONTINUED = {"continue_final_message": True}
OPEN = [*HI, {"role": "assistant", "content": "I am"}]


def test_models(client):
    [model] = client.models.list().data
    assert model.id == "glm"
    assert client.models.retrieve("glm").id == "glm"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_chat(client):
    reply = client.chat.completions.create(model="glm", messages=HI, max_tokens=8, temperature=0)
    [choice] = reply.choices
    assert choice.finish_reason in ("length", "stop")
    assert choice.message.role == "assistant"
    assert choice.message.reasoning_content
    assert reply.usage.completion_tokens <= 8
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.usage.completion_tokens_details.reasoning_tokens == reply.usage.completion_tokens


def test_stream_says_what_the_whole_answer_says(client):
    asked = {"model": "glm", "messages": OPEN, "max_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**asked, extra_body=CONTINUED)
    chunks = list(
        client.chat.completions.create(
            **asked,
            extra_body=CONTINUED,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason


def test_completions_of_text_and_of_token_ids(client):
    asked = {"model": "glm", "max_tokens": 6, "temperature": 0}
    by_text = client.completions.create(prompt=["alpha", "beta"], **asked)
    assert [choice.index for choice in by_text.choices] == [0, 1]
    assert by_text.usage.completion_tokens <= 12
    by_ids = client.completions.create(prompt=[[5, 6, 7]], **asked)
    streamed = client.completions.create(prompt=[5, 6, 7], stream=True, **asked)
    assert "".join(chunk.choices[0].text for chunk in streamed) == by_ids.choices[0].text


def test_choices_differ_and_seeds_repeat(client):
    asked = {"model": "glm", "messages": HI, "max_tokens": 12, "temperature": 1.0, "n": 2}

    def texts(**extra):
        reply = client.chat.completions.create(**asked, **extra)
        assert [choice.index for choice in reply.choices] == [0, 1]
        return [choice.message.reasoning_content for choice in reply.choices]

    first = texts(seed=7)
    assert first[0] != first[1]
    assert texts(seed=7) == first
    assert texts(seed=8) != first
    assert texts() != texts()


def test_stop_string_cuts_the_answer(client):
    asked = {"model": "glm", "prompt": "alpha beta", "max_tokens": 24, "temperature": 0}
    whole = client.completions.create(**asked)
    text = whole.choices[0].text
    stop = text[len(text) // 2 :][:3]
    cut = client.completions.create(**asked, stop=stop)
    assert cut.choices[0].text == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    assert cut.usage.completion_tokens < whole.usage.completion_tokens


def test_logprobs(client):
    chat = client.chat.completions.create(
        model="glm", messages=HI, max_tokens=5, temperature=0, logprobs=True, top_logprobs=3
    )
    content = chat.choices[0].logprobs.content
    assert len(content) == chat.usage.completion_tokens
    for entry in content:
        assert entry.logprob <= 0
        assert len(entry.top_logprobs) == 3
        # Greedy: the drawn token is the likeliest.
        assert entry.top_logprobs[0].logprob == pytest.approx(entry.logprob, abs=1e-5)
    legacy = client.completions.create(
        model="glm", prompt="alpha", max_tokens=4, temperature=0, logprobs=2
    )
    logprobs = legacy.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == legacy.usage.completion_tokens
    assert logprobs.text_offset[0] == 0


def test_sampling_fields_have_their_effect(client):
    asked = {"model": "glm", "prompt": "alpha", "max_tokens": 6}
    greedy = client.completions.create(**asked, temperature=0).choices[0].text
    narrow = client.completions.create(**asked, temperature=1, extra_body={"top_k": 1})
    assert narrow.choices[0].text == greedy
    biased = client.completions.create(**asked, temperature=0, logit_bias={"40": 100}, logprobs=0)
    assert len(set(biased.choices[0].logprobs.tokens)) == 1
    assert biased.choices[0].text != greedy


def test_refusals_are_the_clients_errors(client):
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=HI)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="glm", messages=[])
    assert caught.value.param == "messages"
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="glm", prompt=[5] * 5000)
    assert caught.value.code == "context_length_exceeded"


def test_generation_is_clamped_to_the_window(client):
    prompt = [5 + n % 50 for n in range(4093)]
    reply = client.completions.create(
        model="glm",
        prompt=prompt,
        max_tokens=100_000,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.total_tokens == 4096
