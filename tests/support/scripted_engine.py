"""An engine that plays a script instead of running a model.

`ScriptedEngine` stands where the engine library stands (behind the worker's routes);
`ScriptedEngineClient` puts it into the router's own process, where an `EngineClient` is expected.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from trnrt_engine.api import (
    CacheReport,
    EngineHealth,
    EngineInfo,
    EngineRequest,
    EngineStats,
    FinishReason,
    RequestError,
    RequestProgress,
    TokenDelta,
    TokenLogprob,
)
from trnrt_engine.errors import EngineOverloaded, InvalidRequest
from trnrt_router import protocol
from trnrt_router.engine_client import LOST_KIND, DeltaSink, EngineClient, EngineState
from trnrt_router.errors import EngineLost, Overloaded
from trnrt_router.errors import InvalidRequest as RouterInvalidRequest
from trnrt_router.worker import from_wire, to_wire

EOS_ID = 2
INFO = EngineInfo(
    model="glm",
    max_model_len=4096,
    max_num_seqs=12,
    vocab_size=512,
    eos_token_ids=(EOS_ID,),
    backend="scripted",
    version="0",
)


@dataclass(frozen=True, kw_only=True)
class Script:
    """What is emitted for a request.

    Fields:
        steps: token ids per engine step; an EOS or stop id among them ends the request.
        repeat: start over when the steps run out, until the token limit.
        prefill_s: before the first step. fail_after: this many tokens, then an error delta.
        lose_engine_after: this many tokens, then the engine's process is gone.
    """

    steps: Sequence[Sequence[int]] = ((10,), (11,), (12,), (EOS_ID,))
    repeat: bool = False
    prefill_s: float = 0.0
    num_cached_tokens: int = 0
    cache_report: CacheReport | None = None
    fail_after: int | None = None
    lose_engine_after: int | None = None


@dataclass
class _Running:
    request: EngineRequest
    script: Script
    starts_at: float
    num_output: int = 0
    groups: itertools.chain[Sequence[int]] = field(init=False)
    unsent_report: CacheReport | None = field(init=False)

    def __post_init__(self) -> None:
        steps = self.script.steps
        self.groups = itertools.chain(
            itertools.chain.from_iterable(itertools.repeat(steps)) if self.script.repeat else steps
        )
        self.unsent_report = self.script.cache_report

    def take_report(self) -> CacheReport | None:
        """Return the report once: it belongs to the first delta."""
        report, self.unsent_report = self.unsent_report, None
        return report


@dataclass
class ScriptedEngine:
    """Plays `script`, or what `script_for` answers, for every request; one group a step.

    `requests`, `aborted`, `flushed` and `released` record what arrived. `step_gate` stops the
    steps while it is clear.
    """

    info: EngineInfo = INFO
    script: Script = field(default_factory=Script)
    script_for: Callable[[EngineRequest], Script] | None = None
    step_s: float = 0.001
    refusal: Exception | None = None
    requests: list[EngineRequest] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    flushed: list[str | None] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    on_lost: Callable[[], None] = lambda: None
    progress_of: Callable[[str], RequestProgress | None] = lambda request_id: None

    def __post_init__(self) -> None:
        self._running: dict[str, _Running] = {}
        self._work = asyncio.Event()
        self.step_gate = asyncio.Event()
        self.step_gate.set()
        self._steps = self._finished = self._failed = 0
        self.is_alive = True

    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=len(self._running),
            steps=self._steps,
            requests_finished=self._finished,
            requests_failed=self._failed,
            requests_aborted=len(self.aborted),
        )

    def progress(self, request_id: str) -> RequestProgress | None:
        return self.progress_of(request_id) if request_id in self._running else None

    async def submit(self, request: EngineRequest) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.requests.append(request)
        script = self.script_for(request) if self.script_for else self.script
        now = asyncio.get_running_loop().time()
        self._running[request.request_id] = _Running(request, script, now + script.prefill_s)
        self._work.set()

    async def abort(self, request_id: str) -> None:
        if self._running.pop(request_id, None) is not None:
            self.aborted.append(request_id)

    async def flush(self, salt: str | None) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.flushed.append(salt)

    async def release_session(self, session_id: str) -> None:
        self.released.append(session_id)

    async def frames(self) -> AsyncIterator[list[TokenDelta]]:
        loop = asyncio.get_running_loop()
        while True:
            await self._work.wait()
            await asyncio.sleep(self.step_s)
            await self.step_gate.wait()
            now = loop.time()
            self._steps += 1
            deltas = [
                delta
                for running in list(self._running.values())
                if running.starts_at <= now and (delta := self._advance(running)) is not None
            ]
            if not self._running:
                self._work.clear()
            if deltas:
                yield deltas

    def _advance(self, running: _Running) -> TokenDelta | None:
        script, request = running.script, running.request
        if script.lose_engine_after is not None and running.num_output >= script.lose_engine_after:
            self.on_lost()
            return None
        if script.fail_after is not None and running.num_output >= script.fail_after:
            return self._end(running, FinishReason.ERROR, error=RequestError("StepFailed", "boom"))
        group = next(running.groups, None)
        if group is None:
            return self._end(running, FinishReason.STOP)
        return self._emit(running, list(group), request)

    def _emit(self, running: _Running, group: list[int], request: EngineRequest) -> TokenDelta:
        sampling = request.sampling
        stops = {
            *sampling.stop_token_ids,
            *(() if sampling.ignore_eos else self.info.eos_token_ids),
        }
        window = self.info.max_model_len - len(request.token_ids)
        limit = min(sampling.max_tokens or window, window)
        taken: list[int] = []
        reason = None
        for token_id in group:
            taken.append(token_id)
            if token_id in stops and running.num_output + len(taken) > sampling.min_tokens:
                reason = FinishReason.STOP
            elif running.num_output + len(taken) >= limit:
                reason = FinishReason.LENGTH
            if reason is not None:
                break
        running.num_output += len(taken)
        logprobs = None
        if sampling.num_logprobs is not None:
            logprobs = [_logprob(token_id, sampling.num_logprobs) for token_id in taken]
        if reason is None:
            return self._delta(running, token_ids=taken, logprobs=logprobs)
        stop_id = taken[-1] if reason is FinishReason.STOP else None
        return self._end(running, reason, token_ids=taken, logprobs=logprobs, stop_token_id=stop_id)

    def _end(self, running: _Running, reason: FinishReason, **fields: object) -> TokenDelta:
        del self._running[running.request.request_id]
        if reason is FinishReason.ERROR:
            self._failed += 1
        else:
            self._finished += 1
        return self._delta(running, finish_reason=reason, **fields)

    def _delta(self, running: _Running, **fields: object) -> TokenDelta:
        return TokenDelta(
            request_id=running.request.request_id,
            num_prompt_tokens=len(running.request.token_ids),
            num_cached_tokens=running.script.num_cached_tokens,
            num_output_tokens=running.num_output,
            cache_report=running.take_report(),
            **fields,  # type: ignore[arg-type]
        )

    def health(self) -> EngineHealth:
        return EngineHealth(is_alive=self.is_alive, is_ready=self.is_alive)

    async def drain(self, *, grace_s: float | None = None) -> None:
        async with asyncio.timeout(grace_s):
            while self._running:
                await asyncio.sleep(0.001)

    async def close(self) -> None:
        self.is_alive = False

    def drop_all(self) -> None:
        """Forget every request, as a killed process does."""
        self._running.clear()


def _logprob(token_id: int, num_top: int) -> TokenLogprob:
    top = [(token_id + rank, -0.25 - rank) for rank in range(num_top)]
    return TokenLogprob(token_id, -0.25, top)


class ScriptedEngineClient:
    """A `ScriptedEngine` in the router's process; `kill` and `revive` play its process's death."""

    def __init__(self, engine: ScriptedEngine, name: str = "0") -> None:
        self.engine = engine
        self.name = name
        self.state = EngineState.CONNECTING
        self.detail = ""
        self.info: protocol.EngineInfo | None = None
        self.on_state: Callable[[EngineClient], None] = lambda client: None
        self.num_submits = 0
        self._sinks: dict[str, DeltaSink] = {}
        self._pump: asyncio.Task[None] | None = None
        engine.on_lost = self.kill

    @property
    def stats(self) -> protocol.EngineStats:
        return protocol.EngineStats(num_running=len(self._sinks))

    @property
    def progress(self) -> dict[str, protocol.RequestProgress]:
        told = {name: self.engine.progress(name) for name in self._sinks}
        return {
            name: msgspec.convert(progress, protocol.RequestProgress, from_attributes=True)
            for name, progress in told.items()
            if progress is not None
        }

    @property
    def num_in_flight(self) -> int:
        return len(self._sinks)

    def start(self) -> None:
        self._pump = asyncio.create_task(self._deliver())
        self.revive()

    def revive(self) -> None:
        self.info = msgspec.convert(self.engine.info, protocol.EngineInfo, from_attributes=True)
        self._set_state(EngineState.READY)

    def set_loading(self, detail: str = "loading") -> None:
        self._set_state(EngineState.LOADING, detail)

    def kill(self) -> None:
        self._set_state(EngineState.LOST, "killed")
        self.engine.drop_all()
        sinks, self._sinks = self._sinks, {}
        error = protocol.RequestError(LOST_KIND, f"engine {self.name} was lost: killed")
        for request_id, sink in sinks.items():
            sink.put(protocol.TokenDelta(request_id=request_id, error=error))

    async def submit(self, requests: Sequence[protocol.EngineRequest], sink: DeltaSink) -> None:
        self.num_submits += 1
        self._check_ready()
        try:
            for request in requests:
                await self.engine.submit(from_wire(request))
                self._sinks[request.request_id] = sink
        except EngineOverloaded as error:
            raise Overloaded(str(error), retry_after_s=error.retry_after_s) from error
        except InvalidRequest as error:
            raise RouterInvalidRequest(str(error), param=error.param) from error

    def abort(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            if self._sinks.pop(request_id, None) is not None:
                self.engine._running.pop(request_id, None)
                self.engine.aborted.append(request_id)

    async def flush(self, salt: str | None) -> None:
        self._check_ready()
        await self.engine.flush(salt)

    async def release_session(self, session_id: str) -> None:
        self._check_ready()
        await self.engine.release_session(session_id)

    def _check_ready(self) -> None:
        if self.state is not EngineState.READY:
            raise EngineLost(f"engine {self.name} is {self.state}")

    async def close(self) -> None:
        self.kill()
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)

    async def _deliver(self) -> None:
        async for deltas in self.engine.frames():
            for delta in deltas:
                ended = delta.finish_reason is not None
                sink = self._sinks.get(delta.request_id)
                if ended:
                    self._sinks.pop(delta.request_id, None)
                if sink is not None:
                    sink.put(to_wire(delta))

    def _set_state(self, state: EngineState, detail: str = "") -> None:
        self.state, self.detail = state, detail
        self.on_state(self)
