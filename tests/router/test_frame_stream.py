"""The stream reader against servers that are not what it expects."""

from __future__ import annotations

import asyncio
import time

import h11
import msgspec
import pytest

from trnrt_router.frame_stream import StreamRefused, read_frames
from trnrt_router.protocol import Beat, EngineStats, encode_frame

OK = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
BEAT = Beat(EngineStats(steps=3))


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def read_from(*pieces: bytes, stays_open: bool = False, on_message=None, silence_s: float = 20.0):
    """Serve `pieces` to one reader; return what it read, or raise what it raised."""

    async def main():
        answered = asyncio.Event()

        async def serve(reader, writer):
            try:
                await reader.readuntil(b"\r\n\r\n")
                for piece in pieces:
                    writer.write(piece)
                    await asyncio.sleep(0.01)
                if stays_open:
                    await reader.read()
            finally:
                writer.close()
                answered.set()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        messages = []
        async with server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            try:
                await read_frames(url, on_message or messages.append, silence_s=silence_s)
            finally:
                await answered.wait()
        return messages

    return asyncio.run(main())


def test_messages_arrive_however_the_response_is_cut():
    response = OK + chunk(encode_frame(BEAT)) + chunk(encode_frame(BEAT) * 2) + b"0\r\n\r\n"
    assert read_from(response) == [BEAT] * 3
    assert read_from(*(response[i : i + 7] for i in range(0, len(response), 7))) == [BEAT] * 3


def test_other_status_is_a_refusal_with_its_body():
    with pytest.raises(StreamRefused) as caught:
        read_from(b"HTTP/1.1 503 Loading\r\ncontent-length: 4\r\n\r\n40 %")
    assert (caught.value.status, caught.value.body) == (503, b"40 %")


def test_connection_that_breaks_is_an_os_error():
    with pytest.raises((OSError, h11.RemoteProtocolError)):
        read_from(OK + chunk(encode_frame(BEAT)))
    with pytest.raises(FileNotFoundError):
        asyncio.run(read_frames("unix:/no/such.sock", print, silence_s=1.0))


@pytest.mark.parametrize(
    ("response", "raised"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", h11.RemoteProtocolError),
        (OK + chunk(b"\x00\x00\x00\x01\xc1"), msgspec.DecodeError),
        (OK + chunk(b"\xff" * 8), msgspec.DecodeError),
    ],
    ids=["not-http", "not-msgpack", "frame-too-large"],
)
def test_what_is_not_ours_is_named(response, raised):
    with pytest.raises(raised):
        read_from(response, stays_open=True)


def test_what_the_receiver_raises_ends_the_stream():
    def refuse(message):
        raise ValueError("wrong version")

    with pytest.raises(ValueError, match="wrong version"):
        read_from(OK + chunk(encode_frame(BEAT)), stays_open=True, on_message=refuse)


def test_silence_is_a_timeout():
    with pytest.raises(TimeoutError):
        read_from(OK, stays_open=True, silence_s=0.2)


def test_reader_that_was_held_up_itself_does_not_call_it_silence():
    heard = []

    def be_held_up(message):
        heard.append(message)
        if len(heard) == 1:
            time.sleep(0.8)

    with pytest.raises((OSError, h11.RemoteProtocolError)) as caught:
        read_from(OK, *[chunk(encode_frame(BEAT))] * 2, on_message=be_held_up, silence_s=0.5)
    assert not isinstance(caught.value, TimeoutError)
    assert heard == [BEAT] * 2
