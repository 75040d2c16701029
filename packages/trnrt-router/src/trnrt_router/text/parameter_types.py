"""Which JSON types a tool's schema allows for a parameter.

A model writes values as text; the schema says which of them are to be decoded. Only what bears
on that is read: types, values listed one by one, references, and combinations of schemas. A
client's schema may say anything: what is not understood allows every type, nothing raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

Json = Any
Types = frozenset[str]

STRING = "string"
ANY_TYPE: Types = frozenset({STRING, "integer", "number", "boolean", "null", "array", "object"})
ONLY_STRING: Types = frozenset({STRING})

# Deeper combinations of schemas than this allow every type.
MAX_DEPTH = 64
_UNKNOWN: Types = frozenset()
_OF_PYTHON = {
    str: STRING,
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
    list: "array",
    dict: "object",
}


def type_of(value: Json) -> str:
    """Return the JSON type of a decoded value; an integer is not a `number` here."""
    return _OF_PYTHON[type(value)]


class ParameterTypes:
    """The parameters of one tool.

    Args:
        schema: the tool's `parameters`, any JSON value.
    """

    def __init__(self, schema: Json) -> None:
        self._root = schema
        self._known: dict[str, Types] = {}
        self._of_reference: dict[str, Types] = {}

    def of(self, parameter: str) -> Types:
        """Return the types a parameter may have; every type where the schema does not say."""
        if parameter not in self._known:
            found = _UNKNOWN
            others = _UNKNOWN
            for schema in self._alternatives(self._root, set(), 0):
                properties = schema.get("properties")
                if isinstance(properties, dict) and parameter in properties:
                    found |= self._types(properties[parameter], 0) or ANY_TYPE
                others |= self._types(schema.get("additionalProperties"), 0)
            self._known[parameter] = found or others or ANY_TYPE
        return self._known[parameter]

    def _alternatives(self, schema: Json, seen: set[int], depth: int) -> Iterator[dict[str, Json]]:
        """Yield a schema and all schemas that it combines or refers to."""
        if not isinstance(schema, dict) or id(schema) in seen or depth > MAX_DEPTH:
            return
        seen.add(id(schema))
        yield schema
        parts = [part for word in ("allOf", "anyOf", "oneOf") for part in _listed(schema, word)]
        for part in (*parts, self._referred(schema.get("$ref"))):
            yield from self._alternatives(part, seen, depth + 1)

    def _types(self, schema: Json, depth: int) -> Types:
        """Return the types a schema allows, nothing where it does not say."""
        if not isinstance(schema, dict) or depth > MAX_DEPTH:
            return _UNKNOWN
        allowed = _narrowed(_declared(schema), _listed_values(schema))
        if isinstance(reference := schema.get("$ref"), str):
            allowed = _narrowed(allowed, self._types_of_reference(reference, depth))
        for word in ("anyOf", "oneOf"):
            if parts := _listed(schema, word):
                branches = [self._types(part, depth + 1) or ANY_TYPE for part in parts]
                allowed = _narrowed(allowed, _UNKNOWN.union(*branches))
        for part in _listed(schema, "allOf"):
            allowed = _narrowed(allowed, self._types(part, depth + 1))
        return allowed | {"null"} if allowed and schema.get("nullable") is True else allowed

    def _types_of_reference(self, reference: str, depth: int) -> Types:
        if reference not in self._of_reference:
            self._of_reference[reference] = _UNKNOWN  # while it is worked out: it may be a circle
            self._of_reference[reference] = self._types(self._referred(reference), depth + 1)
        return self._of_reference[reference]

    def _referred(self, reference: Json) -> Json:
        """Follow a JSON pointer within the schema; None where it leads nowhere."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        found = self._root
        for part in unquote(reference[1:]).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict):
                found = found.get(name)
            elif isinstance(found, list) and name in map(str, range(len(found))):
                found = found[int(name)]
            else:
                return None
        return found


def _declared(schema: dict[str, Json]) -> Types:
    declared = schema.get("type")
    words = declared if isinstance(declared, list) else [declared]
    found = {word for word in words if isinstance(word, str) and word in ANY_TYPE}
    if "number" in found:
        found.add("integer")
    if not found and declared is None:
        found = {"object"} if "properties" in schema else {"array"} if "items" in schema else found
    return frozenset(found)


def _listed_values(schema: dict[str, Json]) -> Types:
    values = [schema["const"]] if "const" in schema else _listed(schema, "enum")
    return frozenset(type_of(value) for value in values)


def _listed(schema: dict[str, Json], word: str) -> list[Json]:
    value = schema.get(word)
    return value if isinstance(value, list) else []


def _narrowed(allowed: Types, further: Types) -> Types:
    """Return what both allow; one that says nothing, or the contrary, changes nothing."""
    return (allowed & further or allowed) if allowed else further
