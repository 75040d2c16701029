"""The prefix cache under random traffic: every answer that of a fresh engine, nothing lost."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from support.paged_counter import expected_outputs
from support.virtual_engine import VirtualEngine
from trnrt_engine.api import CacheControl, CacheMode, FinishReason

LENGTHS = [1, 63, 64, 65, 127, 128, 129, 191, 192, 200, 255, 256, 257, 320]


@dataclass(frozen=True)
class Submit:
    """A prompt: a stem cut at some length, then a part of its own."""

    stem: int
    cut: int
    branch: int
    more: int
    salt: str
    control: CacheControl
    marks: tuple[int, ...]
    num_outputs: int


@dataclass(frozen=True)
class Abort:
    which: int


@dataclass(frozen=True)
class Preempt:
    which: int


@dataclass(frozen=True)
class Step:
    fails: bool
    poisoned: int | None


@dataclass(frozen=True)
class Flush:
    salt: str | None


@dataclass(frozen=True)
class Release:
    session: str


controls = st.builds(
    CacheControl,
    mode=st.sampled_from([CacheMode.WRITE] * 6 + [CacheMode.READ, CacheMode.OFF]),
    ttl_s=st.sampled_from([None, None, None, 0.05, 0.5]),
).flatmap(
    lambda control: st.sampled_from(
        [control] * 3
        + [CacheControl(ttl_s=control.ttl_s, pin=True, session_id=s) for s in ("s", "t")]
    )
)
submits = st.builds(
    Submit,
    stem=st.integers(0, 1),
    cut=st.sampled_from(LENGTHS),
    branch=st.integers(0, 3),
    more=st.sampled_from([0, 1, 5, 63, 64, 65, 130]),
    salt=st.sampled_from(["", "", "", "x"]),
    control=controls,
    marks=st.lists(st.integers(0, 320), max_size=3, unique=True).map(sorted).map(tuple),
    num_outputs=st.sampled_from([4, 4, 4, 70]),
)
steps = st.builds(
    Step,
    fails=st.sampled_from([False] * 19 + [True]),
    poisoned=st.sampled_from([None] * 19 + [0]),
)
operations = st.lists(
    st.one_of(
        *[submits] * 3,
        *[steps] * 8,
        st.builds(Abort, st.integers(0, 30)),
        st.builds(Preempt, st.integers(0, 30)),
        st.builds(Flush, st.sampled_from([None, "", "x"])),
        st.builds(Release, st.sampled_from(["s", "t"])),
    ),
    max_size=100,
)


def prompt_of(submit: Submit) -> list[int]:
    stem = [(submit.stem * 31 + index * 7 + index // 97) % 97 for index in range(submit.cut)]
    return stem + [(submit.branch * 17 + 3 + index * 5) % 97 for index in range(submit.more)]


@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    operations=operations,
    depth=st.sampled_from([0, 1]),
    page_size=st.sampled_from([64, 128, 256]),
    num_pages=st.integers(0, 8),
    max_num_seqs=st.integers(1, 4),
    num_bundle_slots=st.integers(0, 12),
    token_budget=st.sampled_from([64, 128, 192, 320]),
    swap_bytes=st.sampled_from([0, 3_000, 10**6]),
)
def test_answers_are_those_of_a_fresh_engine(
    operations: list[Submit | Abort | Preempt | Step | Flush | Release],
    depth: int,
    page_size: int,
    num_pages: int,
    max_num_seqs: int,
    num_bundle_slots: int,
    token_budget: int,
    swap_bytes: int,
) -> None:
    engine = VirtualEngine(
        num_pages=-(-512 // page_size) + num_pages,
        page_size=page_size,
        max_num_seqs=max_num_seqs,
        max_model_len=512,
        token_budget=token_budget,
        depth=depth,
        num_bundle_slots=num_bundle_slots,
        swap_bytes=swap_bytes,
    )
    asked: dict[str, list[int]] = {}
    for operation in operations:
        match operation:
            case Submit():
                name, prompt = f"r{len(asked)}", prompt_of(operation)
                count = min(operation.num_outputs, 512 - len(prompt))
                asked[name] = expected_outputs(prompt, count)
                engine.submit(
                    name,
                    prompt,
                    max_tokens=operation.num_outputs,
                    cache=operation.control,
                    cache_salt=operation.salt,
                    marks=[mark for mark in operation.marks if mark <= len(prompt)],
                )
            case Abort(which):
                engine.abort(f"r{which}")
            case Preempt(which):
                engine.scheduler.preempt(f"r{which}")
            case Step(fails, poisoned):
                slots = [request.cache.state_slot for request in engine.scheduler.running]
                bad = slots[poisoned : poisoned + 1] if poisoned is not None else []
                engine.model.bad_slots = set(bad)
                engine.step(fails=fails)
                engine.model.bad_slots = set()
            case Flush(salt):
                engine.cache.flush(salt)
            case Release(session):
                engine.cache.release_session(session)
        engine.scheduler.check_integrity()
    engine.run_until_idle()
    for name, answer in asked.items():
        tokens, end = engine.tokens(name), engine.end(name)
        assert tokens == answer[: len(tokens)]
        if end.finish_reason is FinishReason.LENGTH:
            assert tokens == answer
    assert engine.is_empty()
