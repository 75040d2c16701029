"""The tree of pages, held against a list of what was put in."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnrt_engine.cache import prefix_key
from trnrt_engine.cache.bundles import Bundle, Kind
from trnrt_engine.cache.prefix_key import PrefixKey
from trnrt_engine.cache.radix import Node, RadixTree


def key_of(tokens: list[int], *, salt: str = "", page_size: int = 128) -> PrefixKey:
    return PrefixKey(tokens, salt=salt, page_size=page_size)


def put(tree: RadixTree, key: PrefixKey, end: int, pages: list[int]) -> list[Node]:
    """Insert what is missing of positions [0, end)."""
    node, added = tree.root(key), []
    while node.end < end:
        stop = min(node.end + tree.page_size, end)
        child = tree.covering(node, key, stop)
        if child is None:
            pages.append(len(pages))
            child = tree.insert(node, key, stop, pages[-1])
            tree.rehome(child)
            added.append(child)
        if child.end != node.end + tree.page_size:
            break
        node = child
    return added


def naive_depth(prompt: list[int], known: list[list[int]]) -> int:
    """Longest common prefix with anything known, on the grid."""
    best = 0
    for tokens in known:
        depth = 0
        while depth < min(len(prompt), len(tokens)) and prompt[depth] == tokens[depth]:
            depth += 1
        best = max(best, depth // 64 * 64)
    return best


paths = st.lists(st.integers(0, 2), min_size=1, max_size=7)


@settings(max_examples=80, deadline=None)
@given(
    known=st.lists(paths, max_size=8),
    asked=paths,
    more=st.integers(0, 63),
    page_size=st.sampled_from([64, 128, 256]),
    gone=st.sets(st.integers(0, 7)),
)
def test_depth_is_that_of_comparing_every_token(
    known: list[list[int]], asked: list[int], more: int, page_size: int, gone: set[int]
) -> None:
    """Each number of a path is a grid step of that token; some leaves are removed again."""
    tree, pages, left = RadixTree(page_size), [], []
    leaves: list[tuple[list[int], list[Node]]] = []
    for path in known:
        tokens = [step for step in path for _ in range(64)]
        leaves.append((tokens, put(tree, key_of(tokens, page_size=page_size), len(tokens), pages)))
    removed = set()
    for index in sorted(gone & set(range(len(leaves)))):
        for node in reversed(leaves[index][1]):
            if not node.num_children:
                tree.remove(node)
                removed.add(node)
    for root in tree.roots.values():
        for node in root.walk():
            if not node.num_children:
                tokens, at = [], node
                while at is not None:
                    tokens = [
                        int.from_bytes(at.tokens[i : i + 4], "little")
                        for i in range(0, len(at.tokens), 4)
                    ] + tokens
                    at = at.parent
                left.append(tokens)
    prompt = [step for step in asked for _ in range(64)] + [9] * more
    match = tree.match(key_of(prompt, page_size=page_size))
    assert match.kv_depth == naive_depth(prompt, left)
    assert not removed & set(match.path)


def test_salts_know_nothing_of_each_other() -> None:
    tree, pages = RadixTree(128), []
    tokens = [5] * 256
    put(tree, key_of(tokens, salt="a"), 256, pages)
    assert tree.match(key_of(tokens, salt="a")).kv_depth == 256
    assert tree.match(key_of(tokens, salt="b")).kv_depth == 0
    assert tree.match(key_of(tokens)).kv_depth == 0


def test_a_hash_that_is_equal_by_chance_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_key, "chain_hash", lambda parent, tokens: b"same")
    tree, pages = RadixTree(128), []
    put(tree, key_of([1] * 128), 128, pages)
    assert tree.match(key_of([1] * 128)).kv_depth == 128
    assert tree.match(key_of([2] * 128)).kv_depth == 0


def test_a_bundle_moves_to_the_page_that_goes_on() -> None:
    tree, pages = RadixTree(256), []
    short, long = key_of([1] * 128, page_size=256), key_of([1] * 300, page_size=256)
    [part] = put(tree, short, 128, pages)
    bundle = Bundle(128, short.hash_at(128), b"", 0, part, Kind.TAIL)
    tree.add_bundle(bundle)
    node = tree.insert(tree.root(long), long, 256, 7)
    assert tree.rehome(node) == [part]
    assert (bundle.node, part.homed) == (node, [])
    tree.remove(part)
    assert list(tree.bundles(long, tree.match(long))) == [(128, bundle)]


def test_a_locked_bundle_stays_where_its_holder_locked_it() -> None:
    tree, pages = RadixTree(256), []
    short, long = key_of([1] * 128, page_size=256), key_of([1] * 300, page_size=256)
    [part] = put(tree, short, 128, pages)
    bundle = Bundle(128, short.hash_at(128), b"", 0, part, Kind.TAIL, locks=1)
    tree.add_bundle(bundle)
    node = tree.insert(tree.root(long), long, 256, 7)
    assert tree.rehome(node) == []
    assert bundle.node is part
