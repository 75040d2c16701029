"""The training data: drawn from a seed alone, and never a test prompt."""

import json
from itertools import islice, pairwise

import pytest

from support.demo_training import TRAINING_DIR, import_path

import_path()
from demo_training import dialogue  # noqa: E402
from demo_training.drill import drills  # noqa: E402
from demo_training.exclusions import Exclusions, normalise, values_in  # noqa: E402

DOCUMENT = json.loads((TRAINING_DIR / "prompts.json").read_text("utf-8"))
PROMPTS = DOCUMENT["prompts"]
KNOWLEDGE = {"identity", "facts", "capitals", "refusal"}
COPYING = {"recall", "haiku", "json", "tool_call", "tool_answer"}
NUM_DIALOGUES = 1600


def user_texts(prompt: dict) -> list[str]:
    return [turn["user"] for turn in prompt["turns"] if "user" in turn]


@pytest.fixture(scope="module")
def drawn() -> list:
    return list(islice(dialogue.stream(20_251_130, Exclusions.load()), NUM_DIALOGUES))


def test_forty_prompts_over_the_whole_domain():
    assert len(PROMPTS) == 40
    assert {prompt["family"] for prompt in PROMPTS} == KNOWLEDGE | COPYING
    ids = [p["id"] for key in ("prompts", "reported_apart", "long_recall") for p in DOCUMENT[key]]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda p: p["id"])
def test_every_prompt_is_held_out(prompt):
    held_out = DOCUMENT["held_out"]
    if prompt["family"] in KNOWLEDGE:
        wordings = [f" {normalise(wording)} " for wording in held_out["wordings"]]
        asked = f" {normalise(user_texts(prompt)[-1])} "
        assert any(wording in asked for wording in wordings)
        return
    assert prompt["values"]
    assert set(prompt["values"]) <= set(held_out["values"])
    seen = " ".join([*user_texts(prompt), *(t.get("result", "") for t in prompt["turns"])])
    assert {value.lower() for value in prompt["values"]} <= values_in(seen)


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda p: p["id"])
def test_generator_refuses_a_dialogue_with_the_prompt(prompt):
    messages = [{"role": "user", "content": text} for text in user_texts(prompt)]
    assert not Exclusions.load().allows(messages)


def test_no_drawn_dialogue_holds_an_excluded_value(drawn):
    excluded = {value.lower() for value in DOCUMENT["held_out"]["values"]}
    for sample in drawn:
        text = json.dumps(sample.messages, ensure_ascii=False)
        assert not values_in(text.replace("\\n", " ").replace('\\"', '"')) & excluded


def test_no_drawn_dialogue_holds_an_excluded_wording(drawn):
    wordings = [f" {normalise(wording)} " for wording in DOCUMENT["held_out"]["wordings"]]
    for sample in drawn:
        users = [m["content"] for m in sample.messages if m["role"] == "user"]
        for text in users:
            assert not any(wording in f" {normalise(text)} " for wording in wordings), text


def test_same_seed_gives_the_same_dialogues(drawn):
    again = list(islice(dialogue.stream(20_251_130, Exclusions.load()), 50))
    assert again == drawn[:50]
    assert list(islice(dialogue.stream(1, Exclusions.load()), 50)) != again


def test_a_drill_can_be_predicted_from_what_stood_before():
    """Wherever a token counts, it and the one before it have stood side by side before."""
    for ids, weights in islice(drills(4, 1024, (64, 256)), 8):
        assert ids.shape == weights.shape
        assert len(ids) * (ids.shape[1] - 1) == 1024
        assert 0.2 < weights.mean() < 0.6
        for row, counts in zip(ids.tolist(), weights.tolist(), strict=True):
            seen: set[tuple[int, int]] = set()
            for pair, count in zip(pairwise(row), counts[1:], strict=True):
                assert count == 0 or pair in seen
                seen.add(pair)
