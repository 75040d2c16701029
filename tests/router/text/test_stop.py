"""Text ends at the first stop string; what could not become one is never lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnrt_router.text.stop import StopMatcher


def run(stop, pieces, **options):
    matcher = StopMatcher(stop, **options)
    shown = [matcher.push(piece) for piece in pieces]
    shown.append("" if matcher.matched is not None else matcher.finish())
    return "".join(shown), matcher.matched


@pytest.mark.parametrize(
    ("stop", "text", "shown", "matched"),
    [
        (["STOP"], "abcSTOPdef", "abc", "STOP"),
        (["aac", "ab"], "aabaac", "a", "ab"),
        (["bc", "abcd"], "abcd", "a", "bc"),
        (["c", "abc"], "xabc", "x", "abc"),
        (["\n\nEND"], "a\n\nb", "a\n\nb", None),
        (["\n\nEND"], "a\n\nEN", "a\n\nEN", None),
        (["👩‍💻"], "a👩‍💻b", "a", "👩‍💻"),
        ([], "abc", "abc", None),
    ],
)
def test_first_completed_stop_string_ends_the_text(stop, text, shown, matched):
    assert run(stop, [text]) == run(stop, text) == (shown, matched)


def test_the_stop_string_can_be_shown():
    assert run(["bc", "abcd"], "abcd", include_stop_str=True) == ("abc", "bc")


def test_text_is_released_as_soon_as_it_cannot_match():
    matcher = StopMatcher(["\n\nEND"])
    assert [matcher.push(piece) for piece in ("a\n", "\nEN", "!")] == ["a", "", "\n\nEN!"]


STOPS = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=4)


@given(STOPS, st.lists(st.text(alphabet="abc", max_size=4)), st.booleans())
def test_every_cut_gives_the_same(stop, pieces, include):
    text = "".join(pieces)
    whole = run(stop, [text], include_stop_str=include)
    assert run(stop, pieces, include_stop_str=include) == whole
    assert run(stop, text, include_stop_str=include) == whole
    assert text.startswith(whole[0])
    if not include:
        assert not any(word in whole[0] for word in stop)
