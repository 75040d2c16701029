"""Where the last turn of a session ended: one live bundle per session, in its place in the tree.

The next turn of a conversation repeats the last one's prompt and answer. The states after exactly
those tokens are kept when a request of a session ends, so that its next turn begins there and
replays nothing. The answer's part is in decode form: log-probabilities differ from those of a cold
run by rounding, as long as the model rounds. Its pages are nodes of the tree like others, so the
bundle is evicted like others; only its session finds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from trnrt_engine.api import CacheMode
from trnrt_engine.cache.bundles import Bundle, Kind
from trnrt_engine.cache.prefix_cache import Lookup, PrefixCache
from trnrt_engine.cache.prefix_key import PrefixKey
from trnrt_engine.cache.radix import Match, Node
from trnrt_engine.cache.report import Reason
from trnrt_engine.cache.room import Room
from trnrt_engine.cache.sequence import SequenceCache
from trnrt_engine.plan import Save

Session = tuple[bytes, str]  # root hash of the salt, name


@dataclass(slots=True, eq=False)
class KeptTurn:
    """A bundle on its way into its slot; it and its path are locked until it is there."""

    bundle: Bundle
    node: Node
    save: Save


class TurnEnds:
    """The last turns of sessions, as far as there was room for them."""

    def __init__(self, prefix: PrefixCache, room: Room) -> None:
        self._prefix = prefix
        self._room = room
        self._bundles: dict[Session, Bundle] = {}
        self._under_way: dict[KeptTurn, None] = {}

    def find(self, key: PrefixKey, session_id: str, match: Match) -> Lookup | None:
        """Find the end of a session's last turn, if the prompt goes on from there."""
        bundle = self._bundles.get((key.root_hash, session_id))
        if bundle is None or not bundle.is_live or bundle.position >= key.num_tokens:
            return None
        node, start, position = bundle.node, bundle.node.start, bundle.position
        num_pages = start // key.page_size
        if len(match.path) < num_pages or not node.tokens.startswith(key.span(start, position)):
            return None
        parent = match.path[num_pages - 1] if num_pages else match.root
        if node.parent is not parent:
            return None
        if not self._prefix.check(bundle, position, key.hash_at(position)):
            return None
        return Lookup(match, bundle, Reason.TURN_END)

    def keep(self, cache: SequenceCache, key: PrefixKey) -> KeptTurn | None:
        """Keep the end of a sequence: none of its steps is in flight, and it will not go on.

        Args:
            key: of all tokens that were computed.

        Returns:
            What is to be copied before its slot and its pages are given back; None without a
            session, or when there is no room.
        """
        publication, control = cache.publication, cache.control
        if publication is None or not control.session_id or control.mode is not CacheMode.WRITE:
            return None
        parent: Node | None = publication.node
        if parent is not None and parent.end > publication.num_pages * key.page_size:
            parent = parent.parent  # a part of a page, written on since
        if parent is None or not publication.node.is_attached:
            return None
        slot = self._prefix.take_slot(Kind.TURN_END)
        if slot is None:
            self._prefix.counters.skipped_bundles += 1
            return None
        node, copies = self._add_pages(cache, key, parent)
        if node is None:
            self._prefix.free_slot(slot)
            return None
        bundle = self._prefix.add_turn_end(node, key.num_tokens, key.hash_at(key.num_tokens), slot)
        if control.ttl_s is not None:
            self._prefix.limit_life(bundle, control.ttl_s, is_new=True)
        self._prefix.lock(node)
        self._prefix.lock_bundle(bundle)
        self._prefix.grade(node)
        self._replace((key.root_hash, control.session_id), bundle)
        turn = KeptTurn(bundle, node, Save(cache.state_slot, slot, copies))
        self._under_way[turn] = None
        return turn

    def settle(self, turn: KeptTurn, *, is_saved: bool) -> None:
        """Let go of a bundle whose copy has ended; one that failed cannot be hit."""
        del self._under_way[turn]
        if not is_saved:
            self._prefix.drop(turn.bundle)
        self._prefix.unlock_bundle(turn.bundle)
        self._prefix.unlock(turn.node)

    def locks(self) -> tuple[Counter[Node], Counter[Bundle]]:
        """Return what is held until it is copied, for `check_integrity`."""
        return (
            Counter(turn.node for turn in self._under_way),
            Counter(turn.bundle for turn in self._under_way),
        )

    def _add_pages(
        self, cache: SequenceCache, key: PrefixKey, parent: Node
    ) -> tuple[Node | None, tuple[tuple[int, int], ...]]:
        """Put the pages behind `parent` into the tree.

        The first of them may be a page that the tree has in part already: it is copied.

        Returns:
            The last one, and what is to be copied; None when there is no page for the copy.
        """
        tree, size, page_ids = self._prefix.tree, key.page_size, list(cache.page_ids)
        if parent.end == key.num_tokens:
            return parent, ()
        copies: tuple[tuple[int, int], ...] = ()
        first = parent.end // size
        ends = [*range(parent.end + size, key.num_tokens, size), key.num_tokens]
        if page_ids[first] not in cache.own_pages and not tree.covering(parent, key, ends[0]):
            if not self._room.take_page(cache):
                return None, ()
            copies = ((page_ids[first], cache.page_ids[-1]),)
            page_ids[first] = cache.page_ids[-1]
        if not self._can_hold_known(key, parent, ends):
            return None, ()
        for index, end in enumerate(ends, first):
            node = tree.covering(parent, key, end)
            if node is None:
                if parent.children and key.hash_at(end) in parent.children:
                    return None, ()  # other tokens of the same hash lie there
                node = self._prefix.add_page(parent, key, end, page_ids[index])
                cache.own_pages.remove(page_ids[index])
            parent = node
        return parent, copies

    def _can_hold_known(self, key: PrefixKey, parent: Node, ends: Sequence[int]) -> bool:
        """Whether pages of the turn that the tree knows already can be held."""
        for end in ends:
            node = self._prefix.tree.covering(parent, key, end)
            if node is None:
                break
            parent = node
        return self._prefix.can_hold(parent)

    def _replace(self, session: Session, bundle: Bundle) -> None:
        """Let a bundle take the place of the session's last one."""
        before = self._bundles.pop(session, None)
        if before is not None:
            self._prefix.drop(before)
        if len(self._bundles) > 2 * self._prefix.num_slots:
            self._bundles = {s: kept for s, kept in self._bundles.items() if kept.is_live}
        self._bundles[session] = bundle
