"""The real application over a scripted engine, set up as a record of kind `http` says."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

import msgspec

from support.demo_folder import DEMO_DIR
from support.live_router import LiveRouter, live_router
from support.scripted_engine import INFO, Script, ScriptedEngine, ScriptedEngineClient
from support.tiny_tokenizer import add_pieces
from trnrt_engine.api import EngineRequest
from trnrt_router.text.tokenizer import Tokenizer

Record = dict[str, Any]

_DEFAULT_OUTPUT = ["Hm", ".", "</think>", "All", " good", ".", "<|user|>"]
_EOS_TOKENS = ("<|endoftext|>", "<|user|>", "<|observation|>")


@dataclass(frozen=True, slots=True)
class ScriptedServer:
    """A running router, and what reached its engine."""

    router: LiveRouter
    engine: ScriptedEngine
    tokenizer: Tokenizer

    def prompt_text(self) -> str:
        """The prompt of the first request, control tokens spelled out."""
        return self.tokenizer.decode(self.engine.requests[0].token_ids)


@contextlib.contextmanager
def scripted_server(record: Record) -> Iterator[ScriptedServer]:
    """Serve as the record's `server_options`, scripted output and `fault` ask.

    Raises:
        ValueError: the record asks for an option or fault this server does not know.
    """
    options = dict(record.get("server_options", {}))
    max_model_len = options.pop("max_model_len", INFO.max_model_len)
    settings = {}
    if "sse_keepalive_seconds" in options:
        settings["keepalive_s"] = options.pop("sse_keepalive_seconds")
    if options:
        raise ValueError(f"unknown server options {sorted(options)}")
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = _tokenizer_with(tuple(_pieces(record)), Path(folder))
        eos_ids = tuple(tokenizer.controls.ids[token] for token in _EOS_TOKENS)
        info = msgspec.structs.replace(
            INFO,
            max_model_len=max_model_len,
            eos_token_ids=eos_ids,
            vocab_size=tokenizer.vocab_size,
        )
        script = _script(record, tokenizer)
        engine = ScriptedEngine(info, script_for=lambda request: _for_request(script, request))
        clients = [ScriptedEngineClient(engine)]
        with live_router(clients, model_dir=Path(folder), **settings) as router:
            yield ScriptedServer(router, engine, tokenizer)


def _pieces(record: Record) -> list[bytes]:
    """The bytes of every scripted token that needs an id of its own."""
    if "out_bytes_hex" in record:
        return [bytes.fromhex(piece) for piece in record["out_bytes_hex"]]
    controls = _demo_tokenizer().controls.ids
    texts = [text for text in _output(record) if not any(token in text for token in controls)]
    return [text.encode() for text in texts]


def _output(record: Record) -> list[str]:
    """The scripted token texts, whichever key holds them."""
    for key in ("scripted_output", "out_tokens"):
        if key in record:
            return list(record[key])
    steps = record.get("steps")
    if isinstance(steps, list) and steps and isinstance(steps[0], list):
        return [text for step in steps for text in step]
    return list(_DEFAULT_OUTPUT)


def _script(record: Record, tokenizer: Tokenizer) -> Script:
    id_of = {tokenizer.token_bytes(i): i for i in reversed(range(tokenizer.vocab_size))}
    if "out_bytes_hex" in record:
        tokens = [[id_of[bytes.fromhex(piece)]] for piece in record["out_bytes_hex"]]
    else:
        # A text with tags inside is several tokens: tags are single ids in any real output.
        tokens = [
            [id_of[text.encode()]] if text.encode() in id_of else tokenizer.encode_prompt(text)
            for text in _output(record)
        ]
    if record.get("start_in") == "content" and tokens:
        # The demo's prompts leave the reasoning open: the stub closes it with its first token.
        tokens[0] = [tokenizer.controls.ids["</think>"], *tokens[0]]
    fault = record.get("fault")
    return Script(steps=_grouped(tokens, record.get("steps")), **_fault(fault) if fault else {})


def _grouped(tokens: list[list[int]], steps: Any) -> list[list[int]]:
    """Put tokens into engine steps: one each, `steps` each, or as the list says."""
    if steps is None:
        return tokens
    if isinstance(steps, int):
        sizes = [steps] * -(-len(tokens) // steps)
    else:
        sizes = [step if isinstance(step, int) else len(step) for step in steps]
    queue = iter(tokens)
    groups = [list(chain.from_iterable(islice(queue, size))) for size in sizes]
    return [group for group in chain(groups, queue) if group]


def _fault(fault: dict[str, Any]) -> dict[str, Any]:
    match fault:
        case {"at": "prefill", "what": "delay", "seconds": seconds}:
            return {"prefill_s": seconds}
        case {"at": "after_tokens", "what": "engine_abort", "n": count}:
            return {"fail_after": count}
        case {"at": "before_first_token", "what": "engine_dead"}:
            return {"lose_engine_after": 0}
        case _:
            raise ValueError(f"unknown fault {fault}")


def _for_request(script: Script, request: EngineRequest) -> Script:
    """A request that ignores the end of turn goes on until its limit."""
    if not request.sampling.ignore_eos:
        return script
    return Script(steps=script.steps, repeat=True, prefill_s=script.prefill_s)


def _tokenizer_with(pieces: tuple[bytes, ...], folder: Path) -> Tokenizer:
    """Copy the demo's text side into `folder`, with a token for every piece."""
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        shutil.copy(DEMO_DIR / name, folder)
    raw = json.loads((DEMO_DIR / "tokenizer.json").read_bytes())
    add_pieces(raw, pieces)
    (folder / "tokenizer.json").write_text(json.dumps(raw), encoding="utf-8")
    return Tokenizer.from_dir(folder)


@cache
def _demo_tokenizer() -> Tokenizer:
    return Tokenizer.from_dir(DEMO_DIR)
