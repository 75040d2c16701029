"""Kind `byte_stream`: the raw bytes of tokens through the detokenizer of a choice."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from case_drivers.outcome import PASSED, Outcome, failed
from case_drivers.texts import differences, join
from support.tiny_tokenizer import write_tokenizer
from trnrt_router.text.choice import ChoiceStream
from trnrt_router.text.markup import Section
from trnrt_router.text.tokenizer import Tokenizer


def run(record: dict[str, Any]) -> Outcome:
    pieces = [bytes.fromhex(piece) for piece in record["pieces_hex"] if piece]
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(Path(folder), pieces=pieces)
        tokenizer = Tokenizer.from_dir(folder)
    id_of = {tokenizer.token_bytes(i): i for i in reversed(range(tokenizer.vocab_size))}
    ids = [id_of[piece] for piece in pieces]
    wanted = {("content" if name == "text" else name): v for name, v in record["expect"].items()}
    for group in (1, len(ids)):
        stream = ChoiceStream(
            tokenizer,
            starts_in=Section(record.get("start_in", "content")),
            stop=record.get("stop", []),
        )
        deltas = [stream.push(ids[start : start + group]) for start in range(0, len(ids), group)]
        answer = join([*deltas, stream.finish(record["expect"].get("finish_reason", "stop"))])
        if fault := differences(answer, wanted, {}):
            return failed(f"tokens in groups of {group}: {fault}")
    return PASSED
