"""Both sides of the wire: every field crosses it with a value that is not its default."""

from __future__ import annotations

import typing
from enum import Enum
from types import NoneType, UnionType

import msgspec
import pytest

import trnrt_engine.api as engine_api
from trnrt_router import protocol
from trnrt_router.protocol import Beat, Frame, FrameReader, Hello, encode_frame
from trnrt_router.worker import from_wire, to_wire

MIRRORED = (
    "CacheControl",
    "CacheReport",
    "SamplingParams",
    "EngineRequest",
    "TokenLogprob",
    "RequestError",
    "TokenDelta",
    "RequestProgress",
    "EngineInfo",
    "HistogramSnapshot",
    "EngineStats",
)


def filled(kind: object) -> object:
    """Make a value of a type whose every field differs from its default."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, UnionType):
        return filled(next(arg for arg in args if arg is not NoneType))
    if origin is list:
        return [filled(args[0])]
    if origin is tuple:
        return tuple(filled(arg) for arg in args if arg is not Ellipsis)
    if origin is dict:
        return {filled(args[0]): filled(args[1])}
    assert isinstance(kind, type)
    if issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind)
        return kind(**{name: filled(hints[name]) for name in kind.__struct_fields__})
    if issubclass(kind, Enum):
        return list(kind)[-1]
    return {str: "text", int: 7, float: 0.5, bool: True}[kind]


@pytest.mark.parametrize("name", MIRRORED)
def test_wire_struct_has_exactly_the_engine_fields(name):
    ours, theirs = getattr(protocol, name), getattr(engine_api, name)
    assert ours.__struct_fields__ == theirs.__struct_fields__
    for field, value in zip(
        ours.__struct_fields__, msgspec.structs.astuple(filled(ours)), strict=True
    ):
        default = next(f for f in msgspec.structs.fields(ours) if f.name == field).default
        assert value != default, f"the test fills {field} with its default"


def test_request_reaches_the_engine_whole():
    ours = filled(protocol.EngineRequest)
    body = msgspec.msgpack.encode(protocol.Submit(1, "s", [ours]))
    received = msgspec.msgpack.decode(body, type=protocol.Submit).requests[0]
    assert from_wire(received) == filled(engine_api.EngineRequest)


def test_delta_comes_back_whole():
    delta = to_wire(filled(engine_api.TokenDelta))
    [message] = FrameReader().feed(encode_frame(Frame([delta])))
    assert message == Frame([filled(protocol.TokenDelta)])


def test_hello_and_beat_cross_whole():
    hello = Hello(1, "s", filled(protocol.EngineInfo))
    beat = Beat(filled(protocol.EngineStats), {"r": filled(protocol.RequestProgress)})
    assert FrameReader().feed(encode_frame(hello) + encode_frame(beat)) == [hello, beat]


def test_frames_are_found_however_the_bytes_are_cut():
    messages = [Frame([protocol.TokenDelta(request_id=str(n), token_ids=[n])]) for n in range(5)]
    data = b"".join(map(encode_frame, messages))
    for size in (1, 2, 3, 7, len(data)):
        reader = FrameReader()
        pieces = (data[start : start + size] for start in range(0, len(data), size))
        assert [found for piece in pieces for found in reader.feed(piece)] == messages


def test_bytes_of_another_protocol_are_refused():
    with pytest.raises(msgspec.DecodeError):
        FrameReader().feed(b"HTTP/1.1 200 OK\r\n")
    with pytest.raises(msgspec.DecodeError):
        FrameReader().feed(b"\x00\x00\x00\x01\xc1")


def test_request_with_an_unknown_field_is_refused():
    body = msgspec.msgpack.encode(
        {"protocol": 1, "stream_id": "s", "requests": [], "from_the_future": 1}
    )
    with pytest.raises(msgspec.ValidationError, match="from_the_future"):
        msgspec.msgpack.decode(body, type=protocol.Submit)
