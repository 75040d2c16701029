"""What is kept of a path, and what goes first."""

from __future__ import annotations

from trnrt_engine.cache.bundles import Bundle, Kind
from trnrt_engine.cache.coverage import EvictionOrder, Worth, worth_of
from trnrt_engine.cache.prefix_key import PrefixKey
from trnrt_engine.cache.radix import Node, RadixTree


def path_of(num_pages: int) -> list[Node]:
    tree, key = RadixTree(64), PrefixKey([1] * 64 * num_pages, salt="", page_size=64)
    nodes = [tree.root(key)]
    for index in range(num_pages):
        nodes.append(tree.insert(nodes[-1], key, 64 * (index + 1), index))
    return nodes[1:]


def bundle_at(nodes: list[Node], page: int, kinds: Kind = Kind.CHUNK_END) -> Bundle:
    node = nodes[page - 1]
    return Bundle(node.end, node.hash, b"", page, node, kinds)


def test_a_path_is_dense_at_its_tail_and_thin_toward_its_root() -> None:
    nodes = path_of(32)
    path = [bundle_at(nodes, page) for page in range(32, 0, -1)]
    verdict = worth_of(path)
    kept = [b.position // 64 for b, v in zip(path, verdict, strict=True) if v is not Worth.SURPLUS]
    assert kept == [32, 31, 30, 28, 24, 16]
    assert [v for v in verdict if v is Worth.END] == verdict[:1]


def test_forks_and_the_system_text_are_kept() -> None:
    nodes = path_of(32)
    tree, other = RadixTree(64), PrefixKey([1] * 64 * 20 + [2] * 64, salt="", page_size=64)
    tree.insert(nodes[19], other, 64 * 21, 99)
    kinds = {3: Kind.SYSTEM_END, 5: Kind.JUNCTION | Kind.CHUNK_END}
    path = [bundle_at(nodes, page, kinds.get(page, Kind.MARK)) for page in (32, 21, 20, 18, 5, 3)]
    end, rung, surplus = Worth.END, Worth.RUNG, Worth.SURPLUS
    assert worth_of(path) == [end, rung, end, surplus, end, end]


def test_surplus_goes_first_then_rungs_then_the_ends_of_paths() -> None:
    nodes = path_of(8)
    end, deep, rung = bundle_at(path_of(1), 1), bundle_at(nodes, 8), bundle_at(nodes, 3)
    inner = bundle_at(nodes, 2)
    order = EvictionOrder()
    for bundle in (inner, rung, deep, end):
        order.add(bundle)
    order.grade([deep, rung, inner])
    order.touch(end)
    assert order.slot_victim(surplus_only=True) is inner
    assert order.slot_victim(surplus_only=False) is inner
    inner.locks = 1
    assert order.slot_victim(surplus_only=True) is None
    assert order.slot_victim(surplus_only=False) is rung
    order.remove(rung)
    assert order.slot_victim(surplus_only=False) is deep
    order.touch(deep)
    assert order.slot_victim(surplus_only=False) is end
    assert set(order) == {inner, deep, end}


def test_the_end_of_a_session_that_is_over_goes_before_a_rung_in_use() -> None:
    nodes, over = path_of(8), bundle_at(path_of(1), 1)
    deep, rung = bundle_at(nodes, 8), bundle_at(nodes, 3)
    order = EvictionOrder()
    for bundle in (over, rung, deep):
        order.add(bundle)
    order.grade([deep, rung])
    for _ in range(2):
        order.touch(deep)
    assert order.slot_victim(surplus_only=False) is rung
    for _ in range(20):
        order.touch(deep)
    order.grade([deep, rung])
    order.touch(deep)
    assert order.slot_victim(surplus_only=False) is over


def test_pages_come_from_the_end_of_a_path() -> None:
    nodes = path_of(8)
    inner, deep = bundle_at(nodes, 3), bundle_at(nodes, 8)
    order = EvictionOrder()
    order.add(inner)
    order.add(deep)
    assert order.page_victim() is deep
    nodes[-1].locks = 1
    assert order.page_victim() is None


def test_who_ends_a_path_in_the_place_of_another_goes_next() -> None:
    nodes = path_of(8)
    old, young = bundle_at(path_of(1), 1), bundle_at(path_of(1), 1)
    end, rung = bundle_at(nodes, 8), bundle_at(nodes, 4)
    order = EvictionOrder()
    for bundle in (rung, old, end, young):
        order.add(bundle)
    order.grade([end, rung])
    assert order.page_victim() is old
    order.inherit(rung, end)
    order.remove(end)
    nodes[3].children = None  # the pages behind it are gone
    assert order.page_victim() is old
    order.remove(old)
    assert order.page_victim() is rung
    order.inherit(young, rung)
    order.remove(rung)
    assert order.page_victim() is young
