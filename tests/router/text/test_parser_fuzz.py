"""Whatever a model writes: nothing raises, a stream says what the whole says, nothing leaks."""

import pytest

from support.parser_fuzz import ParserFuzz

QUICK, LONG = 20_000, 1_000_000
SHARES = 5


@pytest.mark.parametrize("share", range(SHARES))
def test_any_sequence_keeps_the_rules(tiny, share):
    fuzz = ParserFuzz(tiny)
    fuzz.run(share, QUICK // SHARES)
    assert all(fuzz.outcomes[kind] > 50 for kind in ("tool_calls", "cut", "stop", "length"))


@pytest.mark.slow(minutes=20)
@pytest.mark.timeout(7200)
def test_a_million_sequences_keep_the_rules(tiny):
    ParserFuzz(tiny).run(SHARES, LONG)
