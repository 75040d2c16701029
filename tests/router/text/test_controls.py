"""Scaffolding and spelled control tokens are told apart, also where spellings overlap."""

from hypothesis import given
from hypothesis import strategies as st

from trnrt_router.text.controls import Controls, PromptText, new_seam, remove_seams

OVERLAPPING = Controls({"<a>": 1, "<a><b>": 2, "b><c": 3, "aa": 4})


def split_plain(controls, text, **keep):
    seam = new_seam()
    prompt = remove_seams(controls.break_up(text, seam, **keep), seam)
    assert prompt.text == text
    return list(controls.split(prompt))


def test_the_longest_control_token_is_meant():
    assert list(OVERLAPPING.split(PromptText("x<a><b>y<a>"))) == ["x", 2, "y", 1]


@given(st.text(alphabet="<>abc"))
def test_data_never_becomes_a_control_token(text):
    assert split_plain(OVERLAPPING, text) == ([text] if text else [])


@given(st.text(alphabet="<>abc"), st.text(alphabet="<>abc"))
def test_scaffolding_around_data_keeps_its_meaning(before, after):
    controls = Controls({"<|x|>": 7, "<a>": 1, "ca": 2})
    seam = new_seam()
    rendered = f"{controls.break_up(before, seam)}<|x|>{controls.break_up(after, seam)}"
    expected = [*([before] if before else []), 7, *([after] if after else [])]
    assert list(controls.split(remove_seams(rendered, seam))) == expected


def test_kept_tokens_stay_controls():
    assert split_plain(OVERLAPPING, "<a>aa", keep=["<a>"]) == [1, "aa"]


def test_no_control_tokens_at_all():
    assert split_plain(Controls({}), "<a>") == ["<a>"]
