from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pytest

from support.demo_folder import DEMO_DIR
from support.live_router import LiveRouter, live_router
from support.scripted_engine import INFO, Script, ScriptedEngine, ScriptedEngineClient
from trnrt_router.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Words:
    """Token ids of the served model by what they mean."""

    tokenizer: Tokenizer
    think_end: int
    eos: int

    def steps(self, *texts: str) -> list[list[int]]:
        """One step per text."""
        return [self.tokenizer.encode_prompt(text) for text in texts]

    def tokens(self, text: str) -> list[list[int]]:
        """One step per token."""
        return [[token_id] for token_id in self.tokenizer.encode_prompt(text)]


@dataclass
class Rig:
    """A live router over two scripted engines, with what tests say about them."""

    router: LiveRouter
    engines: list[ScriptedEngine]
    clients: list[ScriptedEngineClient]
    words: Words

    @property
    def http(self):
        return self.router.http

    def play(self, script: Script) -> None:
        """Let every request from now on be answered by `script`."""
        for engine in self.engines:
            engine.script = script

    def say(self, text: str, **fields: object) -> None:
        """Let every request be answered by a text, a token a step, and an end token."""
        self.play(Script(steps=[*self.words.tokens(text), [self.words.eos]], **fields))

    def aborted(self) -> list[str]:
        return [name for engine in self.engines for name in engine.aborted]

    def num_running(self) -> int:
        return sum(engine.stats().num_running for engine in self.engines)

    def reset(self) -> None:
        for engine, client in zip(self.engines, self.clients, strict=True):
            engine.refusal = engine.script_for = None
            engine.progress_of = lambda request_id: None
            engine.requests.clear()
            engine.aborted.clear()
            engine.flushed.clear()
            engine.released.clear()
            engine.step_gate.set()
            client.num_submits = 0
            client.revive()
        self.router.service.is_draining = False


@pytest.fixture(scope="session")
def words() -> Words:
    tokenizer = Tokenizer.from_dir(DEMO_DIR)
    return Words(tokenizer, tokenizer.control_id("</think>"), tokenizer.control_id("<|user|>"))


@pytest.fixture(scope="session")
def engine_info(words):
    return msgspec.structs.replace(
        INFO, vocab_size=words.tokenizer.vocab_size, eos_token_ids=(words.eos,)
    )


@pytest.fixture(scope="module")
def shared_rig(words, engine_info) -> Iterator[Rig]:
    engines = [ScriptedEngine(info=engine_info) for _ in range(2)]
    clients = [ScriptedEngineClient(engine, str(n)) for n, engine in enumerate(engines)]
    with live_router(clients, keepalive_s=0.05, first_byte_wait_s=0.2) as router:
        yield Rig(router, engines, clients, words)


@pytest.fixture
def rig(shared_rig) -> Iterator[Rig]:
    """A router whose engines have forgotten what other tests did."""
    yield shared_rig
    shared_rig.router.wait_until(lambda: shared_rig.num_running() == 0)
    shared_rig.router.call(shared_rig.reset)
