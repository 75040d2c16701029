"""One or two engines of a box in virtual time, on stores that outlive them; copies can be held."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from support.stepped import SteppedCore
from support.tiny_engine import load_tiny_model, tiny_core
from trnrt_engine.api import CacheControl, CacheMode
from trnrt_engine.cache.disk_store import DiskStore
from trnrt_engine.cache.entries import EntryKind
from trnrt_engine.cache.host_store import HostStore

if TYPE_CHECKING:
    from trnrt_kernels.models.glm5_next.model import Model

WINDOW = 704
MAX_PROMPT = 680
MAX_OUTPUT = 6
VOCAB_SIZE = 256
EOS_IDS = tuple(range(8))
CACHE_ID = bytes(range(32))
STEP_S = 0.02
OFF = CacheControl(mode=CacheMode.OFF)
SIZES = {"vocab_size": VOCAB_SIZE, "eos_token_id": [0], "pad_token_id": 0}


def load_law_model(folder: Path, *, index_kpool: int) -> Model:
    """A tiny model with pools of 4 or 16 tokens, few enough of them taken to leave some out."""
    return load_tiny_model(
        folder, window=WINDOW, index_kpool=index_kpool, index_topk=8 * index_kpool, **SIZES
    )


@dataclass(frozen=True)
class Setup:
    """What an example runs on.

    Fields:
        extra_pages: beyond those of the longest request.
        host_kib, disk_kib: 0 = there is no such tier.
        swap_kib: for sequences that give way; 0 = they are computed again.
        num_engines: 2 share host and disk.
        tick_s: that pass whenever the clock is read, so that steps take time.
    """

    index_kpool: int = 4
    page_size: int = 64
    extra_pages: int = 24
    num_bundle_slots: int = 12
    max_num_seqs: int = 2
    token_budget: int = 128
    num_steps_ahead: int = 0
    host_kib: int = 0
    disk_kib: int = 0
    swap_kib: int = 8192
    num_engines: int = 1
    prefill_ahead: int = 0
    stall_ms: int = 500
    tick_s: float = 0.0


class CopiesDied(Exception):
    """The copy threads' process is gone."""


class Gate:
    """Lets copies pass, holds them, lets some of them pass, or ends them all by an error."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_permits = 0
        self._is_dead = False
        self.is_open = True

    @property
    def num_permits(self) -> int:
        """Copies that still may pass a shut gate."""
        return self._num_permits

    def set(self, *, is_open: bool = False, num_permits: int = 0, is_dead: bool = False) -> None:
        """Say what happens to copies from now on."""
        with self._changed:
            self.is_open, self._num_permits, self._is_dead = is_open, num_permits, is_dead
            self._changed.notify_all()

    def __call__(self) -> None:
        """Wait to be let through; called by the copy threads."""
        with self._changed:
            passes = self._changed.wait_for(
                lambda: self.is_open or self._is_dead or self._num_permits, 60
            )
            assert passes, "a copy was held for a minute"
            if self._is_dead:
                raise CopiesDied
            self._num_permits -= not self.is_open


class LawEngine(SteppedCore):
    """One engine of the box.

    Attributes:
        gate: what its copies pass.
    """

    def __init__(self, model: Model, setup: Setup, folder: Path, clock: Callable[[], float]):
        self.gate = Gate()
        stores = _open_stores(setup, folder)
        longest = MAX_PROMPT + MAX_OUTPUT
        core = tiny_core(
            model,
            max_num_seqs=setup.max_num_seqs,
            prefill_ahead=setup.prefill_ahead,
            max_num_batched_tokens=setup.token_budget,
            max_decode_stall_ms=setup.stall_ms,
            num_steps_ahead=setup.num_steps_ahead,
            num_bundle_slots=setup.num_bundle_slots,
            page_size=setup.page_size,
            num_pages=-(-longest // setup.page_size) + setup.extra_pages,
            eos_token_ids=EOS_IDS,
            cache_id=CACHE_ID,
            is_exact_cache=True,
            swap_bytes=setup.swap_kib * 1024,
            clock=clock,
            **(stores | {"delay": self.gate} if stores else {}),
        )
        super().__init__(core, clock=clock)

    def step(self) -> bool:
        """Run one step; where copies may pass, all that have begun end before it returns."""
        goes_on = super().step()
        if self.gate.is_open:
            self.settle_copies()
        return goes_on

    def settle_copies(self) -> None:
        """Wait until no copy is left, or none may pass."""
        cache = self.core.cache
        while cache.is_copying and (self.gate.is_open or self.gate.num_permits):
            cache.wait_for_copies(0.005)
            cache.poll()

    def evict(self, *, num_pages: int, num_bundles: int) -> None:
        """Give up pages and bundles as if room were needed, as many as may go."""
        prefix = self.core.cache._prefix
        for _ in range(min(num_pages, prefix.num_evictable)):
            prefix.evict_page()
        for bundle in [bundle for bundle in prefix._order if not bundle.locks][:num_bundles]:
            prefix.drop(bundle)

    def lose_entry(self, kind: EntryKind, which: int) -> None:
        """Remove one entry of a kind from the first tier that has one."""
        tiers = self.core.cache.tiers
        for tier in tiers.tiers if tiers is not None else ():
            keys = sorted(key for key in keys_of(tier.store) if key[16:17] == kind.value)
            if keys:
                tier.store.remove(keys[which % len(keys)])
                return

    def die(self) -> None:
        """End at once: copies under way come to nothing, what runs is not told."""
        self.gate.set(is_dead=True)
        self.core.cache.close()

    def count_hits(self) -> dict[str, int]:
        """Return the admissions that hit, by tier."""
        reports = [deltas[0].cache_report for deltas in self.deltas.values()]
        tiers = [report.tier for report in reports if report is not None and report.tier]
        return {tier: tiers.count(tier) for tier in set(tiers)}


def keys_of(store: HostStore | DiskStore) -> list[bytes]:
    """List the keys of a store."""
    if isinstance(store, DiskStore):
        return [file.key for file in store._index]
    return [store._directory.key_of(int(entry)) for entry in store._directory.entries()]


class Alone:
    """Answers of requests alone in a fresh engine without a cache, each worked out once."""

    def __init__(self, models: dict[int, Model]) -> None:
        self._models = models
        self._known: dict[str, tuple[list[int], list[object]]] = {}

    def answer(
        self, index_kpool: int, prompt: list[int], sampling: dict[str, object]
    ) -> tuple[list[int], list[object]]:
        """Return tokens and logprobs."""
        name = repr((index_kpool, prompt, sampling))
        if name not in self._known:
            model = self._models[index_kpool]
            engine = SteppedCore(
                tiny_core(
                    model, max_num_seqs=1, max_num_batched_tokens=WINDOW, eos_token_ids=EOS_IDS
                )
            )
            engine.submit("alone", prompt, cache=OFF, **sampling)
            engine.run()
            assert engine.end("alone").num_cached_tokens == 0
            self._known[name] = engine.tokens("alone"), engine.logprobs("alone")
        return self._known[name]


def _open_stores(setup: Setup, folder: Path) -> dict[str, object]:
    stores: dict[str, object] = {}
    if setup.host_kib:
        stores["host"] = HostStore(
            folder / "host", budget_bytes=setup.host_kib * 1024, block_bytes=4096
        )
    if setup.disk_kib:
        stores["disk"] = DiskStore(folder / "disk", setup.disk_kib * 1024)
    return stores
