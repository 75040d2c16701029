"""Kind `byte_stream`: the raw bytes of tokens through the detokenizer of a choice."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from case_drivers.outcome import PASSED, Outcome, failed
from case_drivers.texts import allowed_answers, differences, join, stream_options
from support.tiny_tokenizer import write_tokenizer
from trnrt_router.text.choice import ChoiceStream
from trnrt_router.text.tokenizer import Tokenizer


def run(record: dict[str, Any]) -> Outcome:
    pieces = [bytes.fromhex(piece) for piece in record["pieces_hex"] if piece]
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(Path(folder), pieces=pieces)
        tokenizer = Tokenizer.from_dir(folder)
    id_of = {tokenizer.token_bytes(i): i for i in reversed(range(tokenizer.vocab_size))}
    ids = [id_of[piece] for piece in pieces]
    options, allowed = stream_options(record), allowed_answers(record)
    for group in range(1, len(ids) + 1):
        stream = ChoiceStream(tokenizer, **options)
        deltas = [stream.push(ids[start : start + group]) for start in range(0, len(ids), group)]
        deltas.append(stream.finish(record["expect"].get("finish_reason", "stop")))
        faults = [differences(join(deltas), expect, {}) for expect in allowed]
        if all(faults):
            return failed(f"tokens in groups of {group}: {faults[0]}")
    return PASSED
