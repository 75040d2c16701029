"""Writes the arguments of one call as JSON text while the model writes their values.

The declared type decides what a value's text means. A declared string is that text, never
decoded, and streams as it comes; every other value is decoded, which takes all of it. Where a
string is one of several types, a text that reads as one of the others is of that type; as soon
as its first character cannot begin any of them it streams as a string.
"""

from __future__ import annotations

import json
from json.encoder import encode_basestring
from typing import NoReturn

from trnrt_router.text.parameter_types import ONLY_STRING, STRING, ParameterTypes, Types, type_of

_JSON_BLANKS = " \t\n\r"
_FIRST_CHARACTERS = {
    "integer": "-0123456789",
    "number": "-0123456789",
    "boolean": "tf",
    "null": "n",
    "array": "[",
    "object": "{",
}
# Models trained on Python slip into its words; only where no string is allowed is that certain.
_PYTHON_WORDS = {
    "True": ("boolean", "true"),
    "False": ("boolean", "false"),
    "None": ("null", "null"),
}


class ArgumentWriter:
    """One JSON object, written pair by pair; joined, what the methods return is its text.

    A name that comes twice is written once, with its first value: what was sent stays sent.
    """

    def __init__(self, types: ParameterTypes) -> None:
        self._types = types
        self._names: set[str] = set()
        self._value_types: Types = ONLY_STRING
        self._is_repeated = False
        self._is_streaming = False
        self._is_undecided = False
        self._held: list[str] = []
        self._before_value = ""

    def begin(self, name: str) -> str:
        """Start a pair."""
        self._is_repeated = name in self._names
        if self._is_repeated:
            return ""
        self._before_value = f"{', ' if self._names else '{'}{encode_basestring(name)}: "
        self._names.add(name)
        self._value_types = self._types.of(name)
        self._is_streaming = False
        self._is_undecided = STRING in self._value_types
        return self._stream() if self._value_types == ONLY_STRING else ""

    def add(self, text: str) -> str:
        """Read the next part of the value."""
        if self._is_repeated:
            return ""
        if self._is_streaming:
            return encode_basestring(text)[1:-1]
        self._held.append(text)
        return self._stream() if self._must_be_string(text) else ""

    def end(self) -> str:
        """End the value, and the pair with it."""
        if self._is_repeated:
            return ""
        if self._is_streaming:
            return '"'
        value = encode_value("".join(self._held), self._value_types)
        self._held.clear()
        return self._before_value + value

    def close(self) -> str:
        """End the object."""
        return "}" if self._names else "{}"

    def _stream(self) -> str:
        """Begin to write the value as a string."""
        self._is_streaming = True
        text = encode_basestring("".join(self._held))[:-1]
        self._held.clear()
        return self._before_value + text

    def _must_be_string(self, text: str) -> bool:
        """Whether this part holds the first character and that rules out all types but string."""
        first = text.lstrip(_JSON_BLANKS)[:1]
        if not first or not self._is_undecided:
            return False
        self._is_undecided = False
        return not any(first in _FIRST_CHARACTERS[t] for t in self._value_types if t != STRING)


def encode_value(text: str, types: Types) -> str:
    """Return a value as JSON text; numbers keep every digit the model wrote.

    Args:
        text: what the model wrote between the value's tags.
        types: the JSON types the schema allows.
    """
    stripped = text.strip(_JSON_BLANKS)
    found = _json_type(stripped)
    if STRING in types:
        is_other = found in types and found != STRING
        return stripped if is_other else encode_basestring(text)
    if found is not None:
        return stripped
    kind, word = _PYTHON_WORDS.get(stripped, ("", ""))
    return word if kind in types else encode_basestring(text)


def _json_type(text: str) -> str | None:
    """Return the type of a JSON text, None for text that is no JSON."""
    try:
        # `len` stands for reading an integer: only the type is asked for, and Python refuses to
        # read very long ones.
        value = json.loads(text, parse_int=len, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None
    return type_of(value)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")
