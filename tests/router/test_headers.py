from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnrt_router.headers import field_list, request_id, sentence_list


@given(st.lists(st.text(), max_size=40))
def test_written_values_are_safe_in_a_header(texts):
    for value in (field_list(texts), sentence_list(texts)):
        assert value.isascii()
        assert value.isprintable() or value == ""


def test_field_list_is_bounded():
    value = field_list(f"field{n}" for n in range(1000))
    assert value.endswith("and-980-more")
    assert len(field_list(["x" * 100_000])) < 100


@pytest.mark.parametrize("given_id", ["", "x" * 129, "two\r\nlines", "\u00e9"])
def test_request_id_unfit_for_a_header_is_replaced(given_id):
    made = request_id({"x-request-id": given_id})
    assert made != given_id
    assert made.startswith("req-")
