"""Checks a client's messages and tools and brings them into the one shape templates expect.

What comes out: every message has `role` and text `content`; tool-call arguments are mappings;
`developer` is `system`; reasoning is `reasoning_content`. What a template would drop in silence
is refused by name.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from trnrt_router.errors import InvalidRequest

Json = Any
Message = dict[str, Any]

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
# Null content is an empty turn only where a turn can say something without text.
_MAY_BE_EMPTY = ("assistant", "tool")


def normalize_messages(messages: Json) -> list[Message]:
    """Return the messages as templates expect them.

    Raises:
        InvalidRequest: names the message and the field at fault.
    """
    if not isinstance(messages, list) or not messages:
        _refuse("messages", "must be a list of at least one message")
    return [_message(message, f"messages.{index}") for index, message in enumerate(messages)]


def normalize_tools(tools: Json) -> list[dict[str, Any]] | None:
    """Return the tools unchanged after a check of their shape; None where there is none.

    Raises:
        InvalidRequest: names the tool and the field at fault.
    """
    if tools is None or tools == []:
        return None
    if not isinstance(tools, list):
        _refuse("tools", "must be a list")
    for index, tool in enumerate(tools):
        where = f"tools.{index}"
        if not isinstance(tool, dict):
            _refuse(where, "must be an object")
        if tool.get("type", "function") != "function":
            raise InvalidRequest.unsupported(f"{where}.type", "only function tools are supported")
        function = tool.get("function")
        if not isinstance(function, dict):
            _refuse(f"{where}.function", "must be an object")
        if not (isinstance(function.get("name"), str) and function["name"].strip()):
            _refuse(f"{where}.function.name", "must be a text that is not empty")
        if not isinstance(function.get("parameters", {}), dict | None):
            _refuse(f"{where}.function.parameters", "must be a JSON schema object")
    return tools


def _message(message: Json, where: str) -> Message:
    if not isinstance(message, dict):
        _refuse(where, "must be an object")
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        _refuse(f"{where}.role", f"must be one of {', '.join(_ROLES)}, not {role!r}")
    normal: Message = {"role": _ROLES[role], "content": _content(message, where)}
    if "name" in message and message["name"] is not None:
        normal["name"] = _text(message["name"], f"{where}.name")
    if role == "assistant":
        _add_assistant_fields(normal, message, where)
    if role == "tool" and message.get("tool_call_id") is not None:
        normal["tool_call_id"] = _text(message["tool_call_id"], f"{where}.tool_call_id")
    return normal


def _add_assistant_fields(normal: Message, message: Message, where: str) -> None:
    if message.get("function_call") is not None:
        raise InvalidRequest.unsupported(
            f"{where}.function_call", "not supported; use tool_calls and role tool"
        )
    for field in ("reasoning_content", "reasoning"):
        if message.get(field) is not None:
            normal["reasoning_content"] = _text(message[field], f"{where}.{field}")
            break
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        _refuse(f"{where}.tool_calls", "must be a list")
    if calls:
        normal["tool_calls"] = [
            _tool_call(call, f"{where}.tool_calls.{index}") for index, call in enumerate(calls)
        ]


def _content(message: Message, where: str) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_part(part, f"{where}.content.{i}") for i, part in enumerate(content))
    if content is None and message["role"] in _MAY_BE_EMPTY:
        refusal = message.get("refusal")
        return "" if refusal is None else _text(refusal, f"{where}.refusal")
    return _refuse(f"{where}.content", "must be a text or a list of content parts")


def _part(part: Json, where: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        _refuse(where, "must be an object")
    kind = part.get("type")
    if kind in ("text", "refusal"):
        return _text(part.get(kind), f"{where}.{kind}")
    raise InvalidRequest.unsupported(
        f"{where}.type", f"only text can be read by this model, not {kind!r}"
    )


def _tool_call(call: Json, where: str) -> dict[str, Any]:
    if not isinstance(call, dict):
        _refuse(where, "must be an object")
    if call.get("type", "function") not in ("function", None):
        raise InvalidRequest.unsupported(f"{where}.type", "only function calls are supported")
    function = call.get("function")
    if not isinstance(function, dict):
        _refuse(f"{where}.function", "must be an object")
    name = _text(function.get("name"), f"{where}.function.name")
    arguments = _arguments(function.get("arguments"), f"{where}.function.arguments")
    normal = {"type": "function", "function": {"name": name, "arguments": arguments}}
    if call.get("id") is not None:
        normal["id"] = _text(call["id"], f"{where}.id")
    return normal


def _arguments(arguments: Json, where: str) -> dict[str, Any]:
    """Decode a call's arguments; clients send JSON text, and several spellings of none."""
    if isinstance(arguments, str):
        if not arguments.strip():
            return {}
        try:
            arguments = json.loads(arguments, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            _refuse(where, f"is not valid JSON: {error}")
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        _refuse(where, "must be a JSON object")
    return arguments


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _text(value: Json, where: str) -> str:
    if not isinstance(value, str):
        _refuse(where, "must be a text")
    return value


def _refuse(where: str, detail: str) -> NoReturn:
    raise InvalidRequest(f"{where}: {detail}", param=where)
