"""The checkpoint's tokenizer: byte-level BPE whose control tokens come from us, never from text.

`tokenizer.json` is read once. The library gets it *without* its added tokens, so that no text
can become a control id; the control tokens of a prompt are found by `Controls` and put between
the encoded texts. For a prompt that spells none in its data this equals the library's own
encoding of the whole string (a test compares them).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from tokenizers import Tokenizer as BpeTokenizer

from trnrt_router.errors import ConfigError, InvalidRequest
from trnrt_router.text.controls import Controls, PromptText

# A table with a place for every id is made: a damaged file must not ask for terabytes.
TokenId = Annotated[int, Meta(ge=0, lt=2**24)]


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """The ids of a prompt and where its pieces (plain texts and control tokens) lie.

    Fields:
        piece_chars, piece_tokens: first character and first token of each piece, and the ends.
    """

    ids: list[int]
    piece_chars: list[int]
    piece_tokens: list[int]


class Tokenizer:
    """Text to ids and back.

    Args:
        bpe: encodes plain text; knows no control token.
        token_bytes: the bytes of each id; empty for ids without a token.
        controls: the control tokens.
    """

    def __init__(self, bpe: BpeTokenizer, *, token_bytes: list[bytes], controls: Controls) -> None:
        self._bpe = bpe
        self._token_bytes = token_bytes
        self._control_ids = frozenset(controls.ids.values())
        self.controls = controls

    @classmethod
    def from_dir(cls, model_dir: str | Path) -> Tokenizer:
        """Read a model folder.

        Raises:
            ConfigError: `tokenizer.json` is missing, unreadable or of an unsupported kind.
        """
        folder = Path(model_dir)
        controls = read_controls(folder)
        path = folder / "tokenizer.json"
        try:
            raw: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
            _refuse_other_kinds(raw)
            vocabulary = msgspec.convert(raw["model"].get("vocab"), dict[str, TokenId])
        except (ValueError, RecursionError, msgspec.DecodeError) as error:
            raise ConfigError(f"cannot use {path}: {error}") from error
        for token in controls.ids.keys() & vocabulary.keys():
            del vocabulary[token]
        return cls(
            _plain_bpe(raw, vocabulary, path),
            token_bytes=_byte_table(vocabulary, controls.ids),
            controls=controls,
        )

    @property
    def vocab_size(self) -> int:
        """One more than the largest id that has a token; the model may have padding rows above."""
        return len(self._token_bytes)

    def encode_text(self, text: str) -> list[int]:
        """Encode plain text: a control token spelled in it stays text."""
        return self._encode([text])[0]

    def encode_prompt(self, prompt: str | PromptText) -> list[int]:
        """Encode a rendered prompt, adding nothing to it.

        In a bare string every spelling of a control token is one; in a `PromptText` those with a
        seam inside are plain text.
        """
        return self.encode_pieces(prompt).ids

    def encode_pieces(self, prompt: str | PromptText) -> EncodedPrompt:
        """`encode_prompt`, with the borders of its pieces."""
        if isinstance(prompt, str):
            prompt = PromptText(prompt)
        pieces = list(self.controls.split(prompt))
        encoded = iter(self._encode([piece for piece in pieces if isinstance(piece, str)]))
        ids: list[int] = []
        num_chars = 0
        piece_chars, piece_tokens = [0], [0]
        for piece in pieces:
            if isinstance(piece, int):
                ids.append(piece)
                num_chars += len(self.controls.tokens[piece])
            else:
                ids.extend(next(encoded))
                num_chars += len(piece)
            piece_chars.append(num_chars)
            piece_tokens.append(len(ids))
        return EncodedPrompt(ids, piece_chars, piece_tokens)

    def decode(self, ids: Iterable[int], *, keep_control: bool = True) -> str:
        """Return the text of ids; bytes that are no UTF-8 become replacement characters."""
        kept = ids if keep_control else (i for i in ids if i not in self._control_ids)
        return b"".join(map(self.token_bytes, kept)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of one token; none for an id without a token."""
        table = self._token_bytes
        return table[token_id] if 0 <= token_id < len(table) else b""

    def token_text(self, token_id: int) -> str:
        """Return one token alone as text; part of a character shows as a replacement character."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def control_id(self, token: str) -> int | None:
        """Return the id of a control token, None when the vocabulary lacks it."""
        return self.controls.ids.get(token)

    def _encode(self, texts: list[str]) -> list[list[int]]:
        # Only the batch call lets other threads run while it works.
        try:
            return [e.ids for e in self._bpe.encode_batch_fast(texts, add_special_tokens=False)]
        except (UnicodeEncodeError, TypeError) as error:
            raise InvalidRequest(
                "the text holds an unpaired surrogate, which is no Unicode character"
            ) from error


class _Part(msgspec.Struct):
    """A part of the file: what it is, or the parts it is made of."""

    type: str | None = None
    decoders: list[_Part] = []


class _Parts(msgspec.Struct):
    model: _Part
    decoder: _Part | None = None


class _AddedToken(msgspec.Struct):
    id: TokenId
    content: str
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


class _AddedTokens(msgspec.Struct):
    added_tokens: list[_AddedToken] = []


def read_controls(model_dir: str | Path) -> Controls:
    """Read the control tokens (all added tokens) of a model folder's `tokenizer.json`.

    Raises:
        ConfigError: the file is missing or an added token reaches into the text around it.
    """
    path = Path(model_dir) / "tokenizer.json"
    try:
        raw: _AddedTokens = msgspec.json.decode(path.read_bytes(), type=_AddedTokens)
        greedy = [t.content for t in raw.added_tokens if t.lstrip or t.rstrip or t.single_word]
        if greedy:
            raise ValueError(f"added tokens with lstrip, rstrip or single_word: {greedy}")
        return Controls({token.content: token.id for token in raw.added_tokens})
    except (OSError, ValueError, msgspec.DecodeError) as error:
        raise ConfigError(f"cannot read the control tokens of {path}: {error}") from error


def _refuse_other_kinds(raw: dict[str, Any]) -> None:
    parts = msgspec.convert(raw, _Parts)
    decoder = parts.decoder or _Part()
    decoders = [part.type for part in decoder.decoders or [decoder]]
    if parts.model.type != "BPE" or "ByteLevel" not in decoders:
        raise ValueError(
            f"only byte-level BPE is supported, found model {parts.model.type!r} "
            f"with decoder {decoders}"
        )


def _plain_bpe(raw: dict[str, Any], vocabulary: dict[str, int], path: Path) -> BpeTokenizer:
    """Build the library's tokenizer without control tokens and without anything it would add."""
    plain = raw | {
        "added_tokens": [],
        "model": raw["model"] | {"vocab": vocabulary},
        "truncation": None,
        "padding": None,
        "post_processor": None,
    }
    try:
        return BpeTokenizer.from_buffer(msgspec.json.encode(plain))
    except Exception as error:  # the library raises nothing narrower
        raise ConfigError(f"cannot use {path}: {error}") from error


def _byte_table(vocabulary: dict[str, int], controls: dict[str, int]) -> list[bytes]:
    byte_of = {character: byte for byte, character in enumerate(_byte_alphabet())}
    table = [b""] * (1 + max([*vocabulary.values(), *controls.values()], default=-1))
    for token, index in vocabulary.items():
        try:
            table[index] = bytes([byte_of[character] for character in token])
        except KeyError:  # not written in the byte alphabet: a token like <unk>
            table[index] = token.encode()
    for token, index in controls.items():
        table[index] = token.encode()
    return table


def _byte_alphabet() -> list[str]:
    """Return the character byte-level BPE writes for each byte: itself where it is visible."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    stand_in = iter(range(0x100, 0x200))
    return [chr(byte if byte in visible else next(stand_in)) for byte in range(0x100)]
