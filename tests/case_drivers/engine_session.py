"""An engine sized by a case record, with the hooks its operations ask for."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from support.stepped import SteppedCore
from support.tiny_engine import load_tiny_model, tiny_core
from trnrt_engine.api import CacheControl, CacheMode, FinishReason
from trnrt_engine.cache.host_store import HostStore
from trnrt_engine.errors import InvalidRequest
from trnrt_engine.plan import SchedulerOutput
from trnrt_engine.request import Request
from trnrt_kernels.memory_plan import cache_bytes
from trnrt_kernels.models.glm5_next.inputs import DecodeInputs
from trnrt_kernels.models.glm5_next.model import Model
from trnrt_kernels.reference import indexer

PAGE_TOKENS = 64  # our smallest page; pools of pages are sized by their tokens
WINDOW = 4096
HOST_TABLE_BYTES = 128 * 1024  # of a store of a few pages
STATUS = {
    FinishReason.STOP: "finished",
    FinishReason.LENGTH: "finished",
    FinishReason.ABORT: "aborted",
    FinishReason.ERROR: "error",
}


@functools.cache
def tiny_model() -> Model:
    """The model of all records."""
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="cases-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return load_tiny_model(folder, window=WINDOW)


def segment_tokens(name: str, length: int, vocab_size: int) -> list[int]:
    """Tokens of a prompt segment, as the README of the cases gives them."""
    return [100 + zlib.crc32(f"{name}:{i}".encode()) % (vocab_size - 200) for i in range(length)]


class FailingRunner:
    """Pass steps on; the next one raises while `fails` is set.

    Attributes:
        visible: positions among which the last row of a request's prompt selected, by request;
            those of its open pool, which it always sees, included.
    """

    def __init__(self, runner: Any) -> None:
        self.runner = runner
        self.fails = False
        self.visible: dict[str, int] = {}

    def launch(self, plan: SchedulerOutput) -> Any:
        """Start a step, or raise."""
        if self.fails:
            self.fails = False
            raise RuntimeError("a failure was injected")
        if plan.prefill is None:
            return self.runner.launch(plan)
        name, length = plan.prefill.request.request_id, len(plan.prefill.request.token_ids)

        def best(scores_TN: Tensor, limit_T: Tensor, width: int) -> Tensor:
            pools = min(scores_TN.shape[1], int(limit_T[-1]))
            pool_size = tiny_model().config.index_kpool
            self.visible[name] = pools * pool_size + length % pool_size
            return search(scores_TN, limit_T, width)

        search = indexer._best
        with mock.patch.object(indexer, "_best", best):
            return self.runner.launch(plan)


class EngineSession(SteppedCore):
    """A stepped engine that notes when each request's tokens came.

    Args:
        num_working_slots: state slots for sequences; the rest of the record's are for bundles.

    Attributes:
        token_steps: steps in which a request's tokens came. submitted_at: its step.
    """

    def __init__(self, setup: dict[str, Any], *, num_working_slots: int) -> None:
        self.setup = setup
        num_pages = setup["device_pages"] * setup["page_tokens"] // PAGE_TOKENS
        self.copy_delay_s = 0.0
        core = tiny_core(
            tiny_model(),
            max_num_seqs=min(setup["max_batch"], num_working_slots),
            max_num_batched_tokens=setup["prefill_chunk_tokens"],
            max_model_len=setup["max_model_len"],
            num_pages=num_pages,
            num_bundle_slots=setup["state_slots"] - num_working_slots,
            **self._host_tier(),
        )
        self.runner = FailingRunner(core.runner)
        object.__setattr__(core, "runner", self.runner)
        super().__init__(core)
        self.num_steps = 0
        self.prompts: dict[str, tuple[list[int], dict[str, Any]]] = {}
        self.refused: set[str] = set()
        self.token_steps: dict[str, list[int]] = {}
        self.submitted_at: dict[str, int] = {}

    def _host_tier(self) -> dict[str, Any]:
        """Return a host tier for as many tokens as the record says; its copies can be slowed."""
        num_pages = self.setup.get("host_pages", 0) * self.setup["page_tokens"] // PAGE_TOKENS
        if not num_pages:
            return {}
        num_states = self.setup.get("host_state_slots", num_pages)
        config, dtype = tiny_model().config, "float32"
        cache = cache_bytes(config, page_size=PAGE_TOKENS, dtype=dtype)
        budget = num_pages * cache.page + num_states * cache.bundle + HOST_TABLE_BYTES
        return {
            "host": HostStore(None, budget_bytes=budget, block_bytes=1024),
            "delay": lambda: time.sleep(self.copy_delay_s),
        }

    def submit_op(self, op: dict[str, Any]) -> None:
        """Queue the request of a `submit`."""
        name, vocab_size = op["id"], self.core.limits.vocab_size
        prompt: list[int] = []
        for segment, length in op["prompt"]:
            if segment.startswith("$out:"):
                prompt += self.tokens(segment.removeprefix("$out:"))[:length]
            else:
                prompt += segment_tokens(segment, length, vocab_size)
        sampling = {key: op[key] for key in ("max_tokens", "temperature", "seed") if key in op}
        fields = {"cache_salt": op["cache_salt"]} if "cache_salt" in op else {}
        if "session" in op:
            fields["cache"] = CacheControl(session_id=op["session"])
        self.prompts[name] = (prompt, sampling)
        self.submitted_at[name] = self.num_steps
        try:
            self.submit(name, prompt, **sampling, **fields)
        except InvalidRequest:
            self.refused.add(name)

    def step(self) -> bool:
        """Run one step and note who got a token."""
        before = {name: len(self.tokens(name)) for name in self.prompts}
        has_work = super().step()
        self.num_steps += 1
        for name, count in before.items():
            if len(self.tokens(name)) > count:
                self.token_steps.setdefault(name, []).append(self.num_steps)
        return has_work

    def run_op(self, op: dict[str, Any], saved: dict[str, dict[str, int]]) -> None:
        """Execute one operation."""
        match op["op"]:
            case "submit":
                self.submit_op(op)
            case "step":
                for _ in range(op["n"]):
                    self.step()
            case "run_until_idle":
                self.run()
            case "abort":
                self.abort(op["id"])
            case "force_preempt":
                self._preempt(op["id"])
            case "force_evict":
                self._evict()
            case "fail_next_step":
                self.runner.fails = True
            case "inject_nan_state":
                self._poison(op["id"])
            case "drop_all_states_keep_pages":
                prefix = self.core.cache._prefix
                for bundle in list(prefix._order):
                    prefix.drop(bundle)
            case "evict_all":
                self.core.cache.flush()
            case "slow_copies":
                self.copy_delay_s = op["seconds"]
            case "dummy_step" | "warmup":
                self._run_padding()
            case "stats":
                saved[op["save"]] = self.stats()
            case other:
                raise ValueError(f"the driver does not know op {other!r}")
        self.core.scheduler.check_integrity()

    def stats(self) -> dict[str, int]:
        """Counts under the names the records use."""
        cache = self.core.cache
        nodes = [*cache._prefix.tree.nodes(), *cache._prefix.tree.roots.values()]
        return {
            "free_pages": cache.num_free_pages,
            "free_state_slots": cache.num_free_state_slots,
            "locked_nodes": sum(node.locks > 0 for node in nodes),
            "pinned_host_pages": cache.tiers.num_pinned if cache.tiers is not None else 0,
        }

    def status(self, name: str) -> str:
        """How a request ended."""
        return "rejected" if name in self.refused else STATUS[self.end(name).finish_reason]

    def cold_tokens(self, name: str) -> list[int]:
        """What the same request yields alone in a fresh engine without a cache."""
        prompt, sampling = self.prompts[name]
        core = tiny_core(tiny_model(), max_num_seqs=1, max_num_batched_tokens=512)
        engine = SteppedCore(core)
        engine.submit(name, prompt, **sampling, cache=CacheControl(mode=CacheMode.OFF))
        engine.run()
        return engine.tokens(name)

    def _preempt(self, name: str) -> None:
        """Send a request away; it must run, else the record would prove nothing."""
        if not self.core.scheduler.preempt(name):
            raise ValueError(f"{name} does not run and cannot be preempted")

    def _evict(self) -> None:
        """Free every page nobody holds."""
        prefix = self.core.cache._prefix
        while prefix.num_evictable:
            prefix.evict_page()

    def _poison(self, name: str) -> None:
        """Overwrite a request's state once it has one: at its start none is read."""
        request = next(r for r in self._requests() if r.request_id == name)
        while not request.num_computed_tokens:
            self.step()
        assert request.cache is not None
        for layer in self.runner.runner.caches.layers:
            if "kda_state" in layer:
                layer["kda_state"][request.cache.state_slot] = float("nan")

    def _requests(self) -> list[Request]:
        return [*self.core.scheduler.running, *self.core.scheduler.waiting]

    @torch.inference_mode()
    def _run_padding(self) -> None:
        """Decode rows none of which is live, as a warm-up does."""
        runner, num_rows = self.runner.runner, 1
        scratch_B = torch.arange(num_rows)
        inputs = DecodeInputs(
            token_ids_B=torch.zeros(num_rows, dtype=torch.int64),
            positions_B=torch.zeros(num_rows, dtype=torch.int64),
            state_slots_B=scratch_B,
            block_table_BP=scratch_B.unsqueeze(1).repeat(1, runner._buckets.context_pages[0]),
            is_live_B=torch.zeros(num_rows, dtype=torch.bool),
        )
        runner._model.decode(inputs, runner.caches, None, runner.sampling_state)
