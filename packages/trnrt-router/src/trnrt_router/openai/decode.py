"""A request body to its Struct: lenient where clients are sloppy, exact in what it refuses."""

from __future__ import annotations

import re
from functools import cache
from typing import TypeVar

import msgspec

from trnrt_router.errors import InvalidRequest

T = TypeVar("T", bound=msgspec.Struct)

_AT_PATH = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_MISNAMED = re.compile(r"(?:missing required|unknown) field `(?P<name>[^`]+)`")
_raw_fields: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(
    dict[str, msgspec.Raw]
)


def decode_body(body: bytes, request_type: type[T]) -> tuple[T, list[str]]:
    """Return the request and the top-level fields it does not know.

    Raises:
        InvalidRequest: the body is no JSON object or a field has a wrong type or range; `param`
            is the field's path.
    """
    try:
        fields = _raw_fields.decode(body)
        request = _decoder(request_type).decode(body)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from error
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise InvalidRequest(
            f"the request body is not valid JSON: {error}", code="invalid_json"
        ) from error
    return request, sorted(fields.keys() - set(request.__struct_fields__))


def integer(value: float, param: str) -> int:
    """Narrow a JSON number to an integer: 5.0 is 5, 5.5 is an error."""
    if isinstance(value, float) and not value.is_integer():
        raise InvalidRequest(f"{param} must be an integer, got {value}", param=param)
    return int(value)


def optional_integer(value: float | None, param: str) -> int | None:
    """`integer` for a field that may be absent."""
    return None if value is None else integer(value, param)


@cache
def _decoder(request_type: type[T]) -> msgspec.json.Decoder[T]:
    return msgspec.json.Decoder(request_type)


def _invalid(message: str) -> InvalidRequest:
    param = None
    if (misnamed := _MISNAMED.search(message)) is not None:
        param = misnamed["name"]
    if (place := _AT_PATH.search(message)) is not None:
        path = place["path"].replace("[...]", "").replace("[", ".").replace("]", "").lstrip(".")
        param = f"{path}.{param}" if param and path else path or param
        message = message[: place.start()]
    subject = f"{param}: " if param else ""
    return InvalidRequest(
        f"{subject}{message[:1].lower()}{message[1:]}", param=param, code="invalid_type"
    )
