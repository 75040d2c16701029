"""Reported failures of hybrid prefix caches, each put into our code where ours could fail alike.

Numbers are those under which the failures were collected from other engines' reports. Every fault
changes one decision and leaves the rest of the engine as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from support.law_box import keys_of
from trnrt_engine import batch
from trnrt_engine.api import CacheControl, CacheMode
from trnrt_engine.cache import bundles, holding
from trnrt_engine.cache.bundles import Kind
from trnrt_engine.cache.copies import CopyQueue
from trnrt_engine.cache.disk_store import DiskStore
from trnrt_engine.cache.entries import EntryKind
from trnrt_engine.cache.holding import Holding
from trnrt_engine.cache.host_store import HostStore
from trnrt_engine.cache.manager import CacheManager
from trnrt_engine.cache.prefix_cache import PrefixCache
from trnrt_engine.cache.radix import RadixTree
from trnrt_engine.device_bytes import CacheBytes
from trnrt_engine.plan import Export
from trnrt_engine.request import Request
from trnrt_engine.runner import Runner
from trnrt_kernels.models.glm5_next.caches import Caches
from trnrt_kernels.models.glm5_next.model import Model
from trnrt_kernels.serving import GRID

if TYPE_CHECKING:
    import pytest

    from trnrt_engine.cache.bytestore import ByteStore

STATES_OF_A_SPLIT = 2  # slots a fixed split leaves to states


@dataclass(frozen=True)
class Fault:
    """One failure.

    Fields:
        inject: puts it into the code.
        caught_by: name of the check that must see it.
    """

    number: str
    what: str
    inject: Callable[[pytest.MonkeyPatch], None]
    caught_by: str

    def __str__(self) -> str:
        return f"{self.number}-{self.what.replace(' ', '_')}-{self.caught_by.replace(' ', '_')}"


def _no_shared_bundle(patch: pytest.MonkeyPatch) -> None:
    """Bundles lie only at the prompt's end, in tokens no other prompt has."""
    patch.setattr(holding, "wanted_bundles", lambda key, marks, report: {key.last_grid: Kind.TAIL})


def _priority_skips_the_lookup(patch: pytest.MonkeyPatch) -> None:
    admission = Request.admission.fget

    def ask(self: Request) -> object:
        asked = admission(self)
        if self.spec.priority:
            asked.control = CacheControl(mode=CacheMode.OFF)
        return asked

    patch.setattr(Request, "admission", property(ask))


def _a_part_nobody_saves(patch: pytest.MonkeyPatch) -> None:
    """The open pool is declared, and no bundle on the grid has one."""
    patch.setattr(bundles, "GRID_PARTS", bundles.GRID_PARTS | bundles.Part.OPEN_POOL)


def _slots_counted_from_the_first_bundle(patch: pytest.MonkeyPatch) -> None:
    copy = Runner._copy

    def wrong_unit(self: Runner, source: int, target: int, page_copies: object) -> None:
        first = self.caches.geometry.first_bundle_slot
        copy(self, source - first if source >= first else source, target, page_copies)

    patch.setattr(Runner, "_copy", wrong_unit)


def _pages_without_states_are_a_hit(patch: pytest.MonkeyPatch) -> None:
    """A prompt goes on behind the pages that are known, from whatever its slot holds."""
    hold = Holding.hold

    def keep_pages(
        self: Holding, cache: object, ask: object, found: object, *, report: object
    ) -> None:
        hold(self, cache, ask, found, report=report)
        path = found.match.path[: ask.key.last_grid // ask.key.page_size]
        if found.bundle is None and path and cache.publication is not None:
            self._prefix.unlock(cache.publication.node)
            self._prefix.lock(path[-1])
            cache.publication.node, cache.publication.num_pages = path[-1], len(path)
            cache.page_ids = [node.page_id for node in path]
            cache.num_cached_tokens = path[-1].end

    patch.setattr(Holding, "hold", keep_pages)


def _exports_counted_from_the_prompt(patch: pytest.MonkeyPatch) -> None:
    """In a chunk that is not the first, exports get the state behind its first grid step."""
    plan_exports = CacheManager.plan_exports

    def plan(self: CacheManager, cache: object, start: int, end: int) -> tuple[Export, ...]:
        exports = plan_exports(self, cache, start, end)
        return tuple(replace(export, num_tokens=GRID) if start else export for export in exports)

    patch.setattr(CacheManager, "plan_exports", plan)


def _a_batch_decodes_on_the_states_of_its_first_row(patch: pytest.MonkeyPatch) -> None:
    decode_inputs = batch.decode_inputs

    def first_slot(*args: object, **fields: object) -> object:
        inputs = decode_inputs(*args, **fields)
        inputs.state_slots_B[inputs.is_live_B] = inputs.state_slots_B[0].clone()
        return inputs

    patch.setattr("trnrt_engine.runner.decode_inputs", first_slot)


def _exports_are_never_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(batch, "_padded_exports", lambda exports: [])


def _a_fork_empties_its_place(patch: pytest.MonkeyPatch) -> None:
    """Where a page gets a sibling, the bundles behind their parent are not found any more."""
    insert = RadixTree.insert

    def split(self: RadixTree, parent: object, *args: object) -> object:
        if parent.children:
            parent.bundles = None
        return insert(self, parent, *args)

    patch.setattr(RadixTree, "insert", split)


def _one_token_alone_is_not_a_number(patch: pytest.MonkeyPatch) -> None:
    prefill = Model.prefill

    def bad_tile(self: Model, inputs: object, caches: Caches, *args: object) -> object:
        if int(inputs.num_tokens) == 1 and int(inputs.start) > 0:
            for layer in caches.layers:
                if "kda_state" in layer:
                    layer["kda_state"][inputs.state_slot] = float("nan")
        return prefill(self, inputs, caches, *args)

    patch.setattr(Model, "prefill", bad_tile)


def _pages_move_without_pool_keys(patch: pytest.MonkeyPatch) -> None:
    """Only latents are copied down and back; they and the pool keys take turns in a page."""
    page = CacheBytes.page
    patch.setattr(CacheBytes, "page", lambda *args, **fields: page(*args, **fields)[::2])


def _loads_bring_nothing(patch: pytest.MonkeyPatch) -> None:
    """What is loaded reaches other memory than that of its page or slot."""
    submit_get = CopyQueue.submit_get

    def astray(self: CopyQueue, store: ByteStore, key: bytes, *, into: list[memoryview]) -> object:
        header, *rest = into
        rest = [memoryview(bytearray(len(buffer))) for buffer in rest]
        return submit_get(self, store, key, into=[header, *rest])

    patch.setattr(CopyQueue, "submit_get", astray)


def _another_prefix(kind: EntryKind) -> Callable[..., None]:
    """A lower tier gives, behind the local part of a hit, what belongs to another prefix."""

    def inject(patch: pytest.MonkeyPatch) -> None:
        get = HostStore.get

        def other(self: HostStore, key: bytes) -> object:
            if key[16:17] == kind.value:
                keys = sorted(k for k in keys_of(self) if k[16:] == key[16:])
                key = keys[keys.index(key) - 1] if key in keys else key
            return get(self, key)

        patch.setattr(HostStore, "get", other)

    return inject


def _slots_are_not_restored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Caches, "copy_slot", lambda self, src, dst: None)


def _hits_are_not_held_until_restored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PrefixCache, "lock_bundle", lambda self, bundle: None)


def _a_split_starves_states(patch: pytest.MonkeyPatch) -> None:
    """A tier keeps a fixed share for states, too small, and fills the rest with pages."""

    def put_in_share(put: Callable[..., bool]) -> Callable[..., bool]:
        def limited(self: ByteStore, key: bytes, chunks: list[memoryview], **fields: int) -> bool:
            is_state = [k[16:17] == EntryKind.STATES.value for k in (key, *keys_of(self))]
            if is_state[0] and sum(is_state) > STATES_OF_A_SPLIT:
                return False
            return put(self, key, chunks, **fields)

        return limited

    for store in (HostStore, DiskStore):
        patch.setattr(store, "put", put_in_share(store.put))


FAULTS = (
    Fault("F1", "no bundle at a shared position", _no_shared_bundle, "hit floor"),
    Fault("F2", "priority skips the lookup", _priority_skips_the_lookup, "hit floor"),
    Fault("F4", "a part nobody saves", _a_part_nobody_saves, "hit floor"),
    Fault("F4", "a part nobody saves", _a_part_nobody_saves, "self-test"),
    Fault("F6", "slots in a wrong unit", _slots_counted_from_the_first_bundle, "law"),
    Fault("F8", "pages without states are a hit", _pages_without_states_are_a_hit, "law"),
    Fault("F8", "loads bring nothing", _loads_bring_nothing, "law"),
    Fault("F8", "loads bring nothing", _loads_bring_nothing, "self-test"),
    Fault("F9", "exports counted from the prompt", _exports_counted_from_the_prompt, "law"),
    Fault("F9", "a batch on one state", _a_batch_decodes_on_the_states_of_its_first_row, "law"),
    Fault("F10", "exports are never written", _exports_are_never_written, "law"),
    Fault("F10", "exports are never written", _exports_are_never_written, "self-test"),
    Fault("F11", "a fork empties its place", _a_fork_empties_its_place, "hit floor"),
    Fault("F12", "one token alone is no number", _one_token_alone_is_not_a_number, "law"),
    Fault("F13", "pages move without pool keys", _pages_move_without_pool_keys, "law"),
    Fault("F15", "other states", _another_prefix(EntryKind.STATES), "restore assertion"),
    Fault("F15", "other pages", _another_prefix(EntryKind.PAGE), "restore assertion"),
    Fault("F16", "slots are not restored", _slots_are_not_restored, "law"),
    Fault("F16", "slots are not restored", _slots_are_not_restored, "self-test"),
    Fault("F16", "hits are not held", _hits_are_not_held_until_restored, "integrity"),
    Fault("F17", "a split starves states", _a_split_starves_states, "hit floor"),
)
