"""What a tool's schema says about the types of a parameter, however it says it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.case_names import spelled
from trnrt_router.text.parameter_types import ANY_TYPE, ParameterTypes

NODE = {"$ref": "#/$defs/node"}
DEFS = {
    "$defs": {
        "node": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "string"}]},
        "a/b~c": {"type": "integer"},
        "size": {"enum": ["s", "m"]},
        "twice": {"$ref": "#/$defs/size"},
    },
    "definitions": {"flag": {"type": "boolean"}},
}


def types_of(schema):
    return set(ParameterTypes({"properties": {"p": schema}, **DEFS}).of("p"))


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": "string", "format": "date"}, {"string"}),
        ({"type": "integer"}, {"integer"}),
        ({"type": "number"}, {"number", "integer"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"type": "string", "nullable": True}, {"string", "null"}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"string", "null"}),
        ({"oneOf": [{"type": "array"}, {"type": "object"}]}, {"array", "object"}),
        ({"anyOf": [{"type": "array"}, {}]}, ANY_TYPE),
        ({"allOf": [{"type": ["string", "integer"]}, {"type": "string"}]}, {"string"}),
        ({"type": "string", "anyOf": [{"minLength": 1}, {"pattern": "x"}]}, {"string"}),
        ({"enum": ["a", "b"]}, {"string"}),
        ({"enum": ["a", 1, None]}, {"string", "integer", "null"}),
        ({"type": "string", "enum": ["a", None]}, {"string"}),
        ({"const": True}, {"boolean"}),
        ({"const": 1.5}, {"number"}),
        ({"properties": {}}, {"object"}),
        ({"items": {"type": "string"}}, {"array"}),
        ({"$ref": "#/$defs/twice"}, {"string"}),
        ({"$ref": "#/definitions/flag"}, {"boolean"}),
        ({"$ref": "#/$defs/a~1b~0c"}, {"integer"}),
        ({"$ref": "#/$defs/a%7E1b~0c"}, {"integer"}),
        ({"allOf": [{"$ref": "#/$defs/size"}], "description": "d"}, {"string"}),
        ({"anyOf": [{"$ref": "#/$defs/size"}, {"type": "null"}]}, {"string", "null"}),
        (NODE, ANY_TYPE),
        # Said wrongly, or not at all.
        ({}, ANY_TYPE),
        (True, ANY_TYPE),
        (None, ANY_TYPE),
        ({"type": "float"}, ANY_TYPE),
        ({"type": 3}, ANY_TYPE),
        ({"type": "string", "enum": [1]}, {"string"}),
        ({"$ref": "#/$defs/missing"}, ANY_TYPE),
        ({"$ref": "other.json#/a"}, ANY_TYPE),
        ({"$ref": "#/$defs/size/enum/99999999999999999999"}, ANY_TYPE),
        ({"$ref": 5}, ANY_TYPE),
        ({"anyOf": []}, ANY_TYPE),
        ({"anyOf": {"type": "string"}}, ANY_TYPE),
    ],
    ids=spelled,
)
def test_every_way_to_declare_a_type(schema, types):
    assert types_of(schema) == set(types)


@pytest.mark.parametrize(
    ("root", "types"),
    [
        (None, ANY_TYPE),
        ({}, ANY_TYPE),
        ({"properties": []}, ANY_TYPE),
        ({"properties": {"q": {"type": "string"}}}, ANY_TYPE),
        ({"additionalProperties": {"type": "string"}}, {"string"}),
        ({"additionalProperties": False}, ANY_TYPE),
        ({"properties": {"p": {}}, "additionalProperties": {"type": "string"}}, ANY_TYPE),
        ({"allOf": [{"properties": {"p": {"type": "integer"}}}]}, {"integer"}),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"properties": {"p": {"type": "null"}}}}}, {"null"}),
        (
            {
                "anyOf": [
                    {"properties": {"p": {"type": "string"}}},
                    {"properties": {"p": {"type": "integer"}}},
                ]
            },
            {"string", "integer"},
        ),
        ({"allOf": [{"$ref": "#"}], "properties": {"p": {"type": "string"}}}, {"string"}),
    ],
    ids=spelled,
)
def test_where_a_parameter_may_be_declared(root, types):
    assert set(ParameterTypes(root).of("p")) == set(types)


def test_references_that_double_at_every_step_cost_no_more_than_their_number():
    steps = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(28)}
    root = {
        "properties": {"p": {"$ref": "#/$defs/d0"}},
        "$defs": {**steps, "d28": {"type": "string"}},
    }
    assert ParameterTypes(root).of("p") == {"string"}


def test_depth_is_bounded():
    schema = {"type": "string"}
    for _ in range(5000):
        schema = {"anyOf": [schema]}
    assert types_of(schema) == ANY_TYPE
    assert ParameterTypes({"allOf": [schema]}).of("p") == ANY_TYPE


WORDS = ["type", "anyOf", "oneOf", "allOf", "enum", "$ref", "properties", "items", "p", "$defs"]
SCHEMAS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["string", "integer", "#", "#/p", "#/properties/p", "#/anyOf/0", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(SCHEMAS)
def test_no_schema_raises(schema):
    types = ParameterTypes(schema)
    assert types.of("p")
    assert types.of("p") <= ANY_TYPE
