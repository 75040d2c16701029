"""Characters are never cut, invalid bytes never stall, offsets count characters."""

from hypothesis import given
from hypothesis import strategies as st

from trnrt_router.text.detokenize import Detokenizer, Tag, TextOffsets, Utf8Stream

CHUNKS = st.lists(
    st.binary(max_size=4)
    | st.text(max_size=2).map(str.encode)
    | st.sampled_from(
        [b"\xf0", b"\x9f", b"\x98", b"\x80", b"\xe4\xbd", b"\xa0", b"\xff", b"\xed\xa0"]
    )
)


@given(CHUNKS)
def test_stream_equals_decoding_at_once(chunks):
    stream = Utf8Stream()
    pieces = [stream.push(chunk) for chunk in chunks]
    assert "".join([*pieces, stream.finish()]) == b"".join(chunks).decode("utf-8", "replace")


@given(st.text())
def test_valid_text_has_no_replacement_characters_at_any_byte(text):
    stream = Utf8Stream()
    seen = ""
    for byte in text.encode():
        seen += stream.push(bytes([byte]))
        assert text.startswith(seen)
    assert seen == text
    assert stream.finish() == ""


def byte_id(tokenizer, byte):
    return next(i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == byte)


def test_a_control_token_ends_a_cut_character(tiny):
    close = tiny.control_id("</think>")
    hidden = tiny.control_id("<|user|>")
    reader = Detokenizer(tiny, tags={close: Tag("</think>")}, hidden_ids=frozenset([hidden]))
    lead, tail = byte_id(tiny, b"\xf0"), byte_id(tiny, b"\x9f")
    pieces = [piece for token in (lead, close, tail, hidden, lead) for piece in reader.push(token)]
    assert [piece for piece in pieces if piece] == ["\ufffd", "</think>", "\ufffd"]
    assert [type(piece) for piece in pieces if piece] == [str, Tag, str]
    assert reader.finish() == "\ufffd"


@given(st.text())
def test_offsets_add_up_to_the_text(tiny, text):
    offsets = TextOffsets(tiny, start=3)
    read = b""
    for token in tiny.encode_text(text):
        assert offsets.push(token) == 3 + len(read.decode("utf-8", "ignore"))
        read += tiny.token_bytes(token)
    assert read.decode() == text
