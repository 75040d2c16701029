"""One prompt as long as the window through a real engine: answered, cached, spilled, loaded back.

The model is tiny in every width and keeps the released pool of 4 tokens, three KDA layers before
each sparse one, two attention heads to an index head. A test runs it at some thousand tokens,
`tests/bench/long_context.py` at 1,048,576.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from support.tiny_checkpoint import make_tiny_checkpoint
from trnrt_engine.api import CacheReport, EngineRequest, SamplingParams, TokenDelta, TokenLogprob
from trnrt_engine.cache.disk_store import DiskStore
from trnrt_engine.cache.host_store import HostStore
from trnrt_engine.core import EngineCore, StepHandle, Stepper
from trnrt_engine.generation_config import GenerationConfig
from trnrt_engine.intake import make_request
from trnrt_engine.loading import make_core
from trnrt_engine.plan import SchedulerOutput
from trnrt_engine.runner import Runner
from trnrt_kernels.memory_plan import MemoryPlan, plan_memory
from trnrt_kernels.models.glm5_next.caches import Caches
from trnrt_kernels.models.glm5_next.config import Glm5NextConfig
from trnrt_kernels.models.glm5_next.model import Model
from trnrt_kernels.models.glm5_next.weights import load_weights
from trnrt_kernels.numeric import NumericMode
from trnrt_kernels.reference import indexer
from trnrt_kernels.serving import ServingShape

VOCAB_SIZE = 256
TEXT_CHANGES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 4,
    "layer_types": [*["linear_attention"] * 3, "deepseek_sparse_attention"],
    "mlp_layer_types": ["dense", "dense", "dense", "sparse"],
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "q_lora_rank": 16,
    "kv_lora_rank": 128,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "index_n_heads": 1,
    "index_head_dim": 8,
    "index_topk": 256,
    "linear_attn_config": {
        "num_heads": 2,
        "head_dim": 16,
        "short_conv_kernel_size": 4,
        "gate_lower_bound": -5.0,
    },
    "num_nextn_predict_layers": 0,
    "eos_token_id": [VOCAB_SIZE - 1],
    "pad_token_id": VOCAB_SIZE - 1,
}
# The model's memory arithmetic in float32: a token costs the latent of the sparse layer and a
# quarter of a pool's key, a slot the state and the conv tail of three KDA layers and an open pool.
TOKEN_BYTES = 4 * (128 + 8 // 4)
STATE_BYTES = 4 * 3 * 2 * 16 * 16
SLOT_BYTES = STATE_BYTES + 4 * (3 * 3 * 3 * 2 * 16 + 3 * 2 * 8)
NUM_OUTPUTS = 16
TURN_TOKENS = 96  # of the second turn's own message
MAX_DECODE_STALL_MS = 500  # plays no part: nothing runs beside the prompt
LATE_AFTER_S = 300.0  # of a load; the machine may be busy


@dataclasses.dataclass(frozen=True)
class Answer:
    """What one request gave.

    Fields:
        cpu_s: of the process from its first step to its last.
    """

    tokens: list[TokenLogprob]
    report: CacheReport
    num_cached_tokens: int
    num_computed_tokens: int
    cpu_s: float

    @property
    def ids(self) -> list[int]:
        """Token ids without their logprobs."""
        return [token.token_id for token in self.tokens]


def cache_arithmetic(*, num_pages: int, page_size: int, num_slots: int) -> int:
    """Bytes that caches of so many pages and slots take."""
    return num_pages * page_size * TOKEN_BYTES + num_slots * SLOT_BYTES


class _Watched:
    """Pass steps on and remember the last plan."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.caches = runner.caches
        self.plan: SchedulerOutput | None = None

    def launch(self, plan: SchedulerOutput) -> StepHandle:
        self.plan = plan
        return self._runner.launch(plan)


class LongEngine:
    """An engine with a window of `window` tokens and all tiers, stepped by hand.

    Args:
        on_step: called after each step with its plan and what it took of CPU time.
    """

    def __init__(
        self,
        folder: Path,
        *,
        window: int,
        store_gib: float = 2.0,
        on_step: Callable[[SchedulerOutput, float], None] | None = None,
    ) -> None:
        make_tiny_checkpoint(
            folder / "model",
            fp8=False,
            dtype=torch.float32,
            num_shards=1,
            max_position_embeddings=window,
            **TEXT_CHANGES,
        )
        self.config = Glm5NextConfig.from_dir(folder / "model")
        self.shape = ServingShape.resolve(
            window=window,
            index_kpool=self.config.index_kpool,
            backend="cpu",
            dtype="float32",
            numeric_mode="strict",
            max_num_seqs=1,
        )
        self.memory: MemoryPlan = plan_memory(self.config, self.shape)
        weights = load_weights(folder / "model", self.config)
        budget = int(store_gib * 2**30)
        core = make_core(
            Model(self.config, weights, numeric_mode=NumericMode.STRICT),
            self.shape,
            self.memory,
            GenerationConfig((VOCAB_SIZE - 1,), SamplingParams()),
            model_name="tiny",
            max_decode_stall_ms=MAX_DECODE_STALL_MS,
            num_bundle_slots=self.memory.num_bundle_slots,
            cache_id=bytes(32),
            host=HostStore(None, budget_bytes=budget),
            disk=DiskStore(folder / "disk", budget),
            late_after_s=LATE_AFTER_S,
        )
        assert isinstance(core.runner, Runner)
        self._runner = _Watched(core.runner)
        self.core: EngineCore = dataclasses.replace(core, runner=self._runner)
        self._on_step = on_step
        self._stepper = Stepper(self.core, clock=time.monotonic)
        self._num_requests = 0

    @property
    def caches(self) -> Caches:
        """What the steps compute on."""
        return self._runner.caches

    def answer(self, prompt: list[int], *, salt: str = "") -> Answer:
        """Answer a prompt greedily and let all copies end."""
        self._num_requests += 1
        spec = EngineRequest(
            request_id=str(self._num_requests),
            token_ids=prompt,
            cache_salt=salt,
            sampling=SamplingParams(
                temperature=0.0, max_tokens=NUM_OUTPUTS, ignore_eos=True, num_logprobs=4
            ),
        )
        core, before = self.core, self.core.metrics.prompt_tokens
        started_s = time.process_time()
        core.scheduler.add(make_request(spec, core.limits, arrival_s=time.monotonic()))
        deltas: list[TokenDelta] = []
        while core.scheduler.has_work:
            deltas += self._step()
        cpu_s = time.process_time() - started_s
        while core.cache.is_copying:
            self._step()
        last, tokens = deltas[-1], [entry for d in deltas for entry in d.logprobs or []]
        if last.error is not None:
            raise RuntimeError(last.error.message)
        [report] = [d.cache_report for d in deltas if d.cache_report is not None]
        num_computed = core.metrics.prompt_tokens - before
        return Answer(tokens, report, len(prompt) - num_computed, num_computed, cpu_s)

    def forget(self, *tiers: str) -> None:
        """Flush the device, and the named tiers below it."""
        assert self.core.cache.tiers is not None
        self.core.cache.flush_device()
        for tier in tiers:
            self.core.cache.tiers.flush_tier(tier, "")

    def close(self) -> None:
        """End the copy threads and leave the stores."""
        self.core.cache.close()

    def _step(self) -> list[TokenDelta]:
        self._runner.plan, started_s = None, time.process_time()
        deltas = self._stepper.step()
        if self._runner.plan is not None and self._on_step is not None:
            self._on_step(self._runner.plan, time.process_time() - started_s)
        return deltas


@dataclasses.dataclass
class LongTurns:
    """What the life of one long prompt gave.

    Fields:
        cold: the prompt itself. next_turn: the same, its answer and a new message, from the
            device; host, disk: that again after the tiers above had forgotten it.
        turn: the prompt of those three.
    """

    cold: Answer
    next_turn: Answer
    host: Answer
    disk: Answer
    turn: list[int]


def live_long(engine: LongEngine, num_tokens: int, *, say: Callable[[str], None]) -> LongTurns:
    """Answer a prompt, a second turn of it, and that turn again from host and from disk."""
    prompt = random.Random(0).choices(range(VOCAB_SIZE - 1), k=num_tokens)
    say(f"a prompt of {num_tokens:,} tokens, nothing cached")
    cold = engine.answer(prompt)
    turn = [*prompt, *cold.ids, *random.Random(1).choices(range(VOCAB_SIZE - 1), k=TURN_TOKENS)]
    say("its second turn, from the device")
    next_turn = engine.answer(turn)
    engine.forget()
    say("the second turn, loaded from host memory")
    host = engine.answer(turn)
    engine.forget("host")
    say("the second turn, loaded from disk")
    disk = engine.answer(turn)
    return LongTurns(cold, next_turn, host, disk, turn)


class SelectionClock:
    """CPU time of the indexer's dot products and of its search, while `installed`."""

    def __init__(self) -> None:
        self.dots_s = 0.0
        self.search_s = 0.0

    @contextmanager
    def installed(self) -> Iterator[SelectionClock]:
        """Put the clock around the two functions that touch every pool."""
        score, best = indexer._score, indexer._best

        def timed_score(*args: Any) -> Any:
            started_s = time.process_time()
            result = score(*args)
            self.dots_s += time.process_time() - started_s
            return result

        def timed_best(*args: Any) -> Any:
            started_s = time.process_time()
            result = best(*args)
            self.search_s += time.process_time() - started_s
            return result

        indexer._score, indexer._best = timed_score, timed_best
        try:
            yield self
        finally:
            indexer._score, indexer._best = score, best
