"""The automaton finds what a plain search finds, however the text is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnrt_router.text.patterns import Patterns

WORDS = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=4)


def first_match(patterns, text):
    """The match that ends first, the longest of those: (end, length)."""
    for end in range(len(text) + 1):
        lengths = [len(p) for p in patterns if text[:end].endswith(p)]
        if lengths:
            return end, max(lengths)
    return None


@given(WORDS, st.text(alphabet="abc", max_size=12), st.integers(0, 12))
def test_scan_equals_plain_search_for_every_cut(patterns, text, cut):
    automaton = Patterns(patterns)
    state, end, length = automaton.scan(0, text[:cut])
    if not length:
        state, end, length = automaton.scan(state, text, len(text[:cut]))
    assert (first_match(patterns, text) or (len(text), 0)) == (end, length)


@given(WORDS, st.text(alphabet="abc", max_size=12))
def test_depth_is_the_longest_end_that_begins_a_pattern(patterns, text):
    automaton = Patterns(patterns)
    state, _, length = automaton.scan(0, text)
    if not length:
        ends = [text[start:] for start in range(len(text) + 1)]
        begun = [end for end in ends if any(pattern.startswith(end) for pattern in patterns)]
        assert automaton.depth[state] == max(map(len, begun), default=0)


def test_an_empty_pattern_is_refused():
    with pytest.raises(ValueError, match="empty"):
        Patterns(["a", ""])
