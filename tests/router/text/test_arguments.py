"""Argument text: typed by the schema, one JSON object, as early as it is certain."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.calls import is_same_json
from support.case_names import spelled
from trnrt_router.text.arguments import ArgumentWriter, encode_value
from trnrt_router.text.parameter_types import ANY_TYPE, ParameterTypes

STRING = {"string"}


def written(pairs, schema=None):
    """Write (key, pieces of the value) pairs; return the text of every step."""
    writer = ArgumentWriter(ParameterTypes(schema))
    steps = []
    for key, pieces in pairs:
        steps += [writer.begin(key), *(writer.add(piece) for piece in pieces), writer.end()]
    return [*steps, writer.close()]


@pytest.mark.parametrize(
    ("text", "types", "encoded"),
    [
        ("10", {"integer"}, "10"),
        (" 10\n", {"integer"}, "10"),
        ("12345678901234567891", {"integer"}, "12345678901234567891"),
        ("9" * 5000, {"integer"}, "9" * 5000),
        ("0.10000000000000000001", {"number", "integer"}, "0.10000000000000000001"),
        ("1.5", {"integer"}, "1.5"),
        ("true", {"boolean"}, "true"),
        ("True", {"boolean"}, "true"),
        ("None", {"null", "integer"}, "null"),
        ("True", {"integer"}, '"True"'),
        ("True", {"boolean", *STRING}, '"True"'),
        ("null", {"null"}, "null"),
        ('{"a": [1, null]}', {"object"}, '{"a": [1, null]}'),
        ("{'a': 1}", {"object"}, "\"{'a': 1}\""),
        ("[1,", {"array"}, '"[1,"'),
        ("NaN", {"number"}, '"NaN"'),
        ("-Infinity", {"number"}, '"-Infinity"'),
        ("twelve", {"integer"}, '"twelve"'),
        ("", {"integer"}, '""'),
        ("[" * 100_000, {"array"}, '"' + "[" * 100_000 + '"'),
        # One of several types, string among them.
        ("5", {"integer", *STRING}, "5"),
        ("1e5", {"integer", *STRING}, '"1e5"'),
        ("1e5", {"number", "integer", *STRING}, "1e5"),
        ("01234", {"integer", *STRING}, '"01234"'),
        ("null", {"null", *STRING}, "null"),
        ("true", {"null", *STRING}, '"true"'),
        ('"x"', {"null", *STRING}, '"\\"x\\""'),
        (" x ", {"null", *STRING}, '" x "'),
        ('{"a": 1}', {"object", *STRING}, '{"a": 1}'),
        ('{"a": 1', {"object", *STRING}, '"{\\"a\\": 1"'),
        # Undeclared.
        ("5", ANY_TYPE, "5"),
        ("five", ANY_TYPE, '"five"'),
        ('"x"', ANY_TYPE, '"\\"x\\""'),
    ],
    ids=spelled,
)
def test_the_declared_types_decide(text, types, encoded):
    assert encode_value(text, frozenset(types)) == encoded
    json.loads(encoded, parse_int=str)


def test_strings_stream_and_other_values_come_whole():
    schema = {
        "properties": {
            "s": {"type": "string"},
            "n": {"type": "integer"},
            "m": {"type": ["string", "null"]},
        }
    }
    pairs = [("s", ['a "', "b\n"]), ("n", ["1", "2"]), ("m", [" ", "x", "y"]), ("m", ["again"])]
    assert written(pairs, schema) == [
        *('{"s": "', 'a \\"', "b\\n", '"'),
        *("", "", "", ', "n": 12'),
        *("", "", ', "m": " x', "y", '"'),
        *("", "", ""),
        "}",
    ]


def test_a_text_that_may_still_be_another_type_waits():
    schema = {"properties": {"m": {"type": ["string", "null"]}}}
    assert written([("m", ["nul", "l"])], schema) == ["", "", "", '{"m": null', "}"]
    assert written([("m", [" ", "n", " ", "ull"])], schema)[-2] == '{"m": " n ull"'
    assert written([("m", ["nul", "ly"])], schema) == ["", "", "", '{"m": "nully"', "}"]


def test_no_pair_is_an_empty_object():
    assert written([]) == ["{}"]


NAMES = st.sampled_from(["", "a", "b", '"', "ü\n"])
SCHEMAS = st.sampled_from(
    [{}, {"type": "string"}, {"type": ["string", "integer"]}, {"type": "object"}, {"enum": ["x"]}]
)


@given(
    st.dictionaries(NAMES, SCHEMAS),
    st.lists(st.tuples(NAMES, st.lists(st.text() | st.sampled_from(["1", "{", "}", " ", '"'])))),
)
def test_any_pieces_make_one_object_and_every_cut_the_same(properties, pairs):
    schema = {"properties": properties}
    text = "".join(written(pairs, schema))
    assert text == "".join(written([(key, ["".join(value)]) for key, value in pairs], schema))
    found = json.loads(text)
    assert list(found) == list(dict.fromkeys(key for key, _ in pairs))
    first = {}
    for key, value in pairs:
        first.setdefault(key, "".join(value))
    for key, value in first.items():
        if properties.get(key) == {"type": "string"}:
            assert is_same_json(found[key], value)
