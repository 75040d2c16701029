"""The radix tree: prefixes of prompts, a page a node, under one root per salt.

A child is found by the hash of its whole prefix and believed by its tokens. Only the last page of
a prompt may be partial, a multiple of the grid long. Where pages part between grid positions, the
parent knows by hash which child passes through a position (`inner`) and which bundle lies there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from trnrt_engine.cache.bundles import Bundle
from trnrt_engine.cache.prefix_key import TOKEN_BYTES, PrefixKey, chain_hash
from trnrt_kernels.serving import GRID


class Node:
    """One page of one prefix; a root has no page.

    Attributes:
        hash: of the prefix that ends with this page.
        tokens: of this page, as bytes. start, end: its positions.
        children: by hash; None while there are none.
        inner: by hash of a position inside a child's page, a child that passes through it.
        bundles: by hash, those at positions within the children's pages.
        homed: the bundles that need this page as their last.
        locks: holders of this node or of one below it.
        is_attached: it can be reached from its root.
    """

    __slots__ = (
        *("bundles", "children", "end", "hash", "homed", "inner", "is_attached"),
        *("locks", "page_id", "parent", "start", "tokens"),
    )

    def __init__(
        self, parent: Node | None, prefix_hash: bytes, tokens: bytes, page_id: int | None
    ) -> None:
        self.parent = parent
        self.hash = prefix_hash
        self.tokens = tokens
        self.page_id = page_id
        self.start: int = parent.end if parent is not None else 0
        self.end: int = self.start + len(tokens) // TOKEN_BYTES
        self.children: dict[bytes, Node] | None = None
        self.inner: dict[bytes, Node] | None = None
        self.bundles: dict[bytes, Bundle] | None = None
        self.homed: list[Bundle] | None = None
        self.locks = 0
        self.is_attached = True

    @property
    def num_children(self) -> int:
        """Pages that continue this one."""
        return len(self.children) if self.children else 0

    def walk(self) -> Iterator[Node]:
        """Yield this node and all below it, parents first."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            if node.children:
                stack.extend(node.children.values())

    def grid_inside(self) -> Iterator[tuple[int, bytes]]:
        """Yield (position, hash) of the grid positions inside this page, its end not included."""
        parent = self.parent
        if parent is None:
            return
        for position in range(self.start + GRID, self.end, GRID):
            size = (position - self.start) * TOKEN_BYTES
            yield position, chain_hash(parent.hash, self.tokens[:size])


@dataclass(slots=True)
class Match:
    """What the tree knows of a prompt.

    Fields:
        root: of its salt; None where nothing of that salt is known.
        path: nodes of the whole pages that are known, in order.
        kv_depth: tokens known, on the grid.
    """

    root: Node | None
    path: list[Node] = field(default_factory=list)
    kv_depth: int = 0


class RadixTree:
    """Prefixes by salt and tokens; knows nothing of room, time or worth."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.roots: dict[bytes, Node] = {}

    def root(self, key: PrefixKey) -> Node:
        """Return the root of a prompt's salt, made if need be."""
        root = self.roots.get(key.root_hash)
        if root is None:
            root = self.roots[key.root_hash] = Node(None, key.root_hash, b"", None)
        return root

    def match(self, key: PrefixKey) -> Match:
        """Walk down as far as the tree knows the prompt."""
        root = self.roots.get(key.root_hash)
        if root is None:
            return Match(None)
        path: list[Node] = []
        node, data, size = root, key.data, self.page_size
        hashes, num_hashed, step = key.hashes, len(key.hashes), size * TOKEN_BYTES
        # Locals and few calls: this runs once a page.
        for index in range(1, key.num_pages + 1):
            if index >= num_hashed:
                key.page_hash(index - 1)
                num_hashed = len(hashes)
            children = node.children
            child = children.get(hashes[index]) if children else None
            if child is None or not data.startswith(child.tokens, (index - 1) * step):
                break
            path.append(child)
            node = child
        depth = len(path) * size
        for position in range(min(depth + size, key.num_tokens // GRID * GRID), depth, -GRID):
            if self.covering(node, key, position) is not None:
                return Match(root, path, position)
        return Match(root, path, depth)

    def covering(self, parent: Node, key: PrefixKey, position: int) -> Node | None:
        """Return a child of `parent` whose page holds the prompt's tokens up to `position`."""
        for table in (parent.children, parent.inner):
            if table:
                node = table.get(key.hash_at(position))
                if node is not None and node.tokens.startswith(key.span(parent.end, position)):
                    return node
        return None

    def bundles(self, key: PrefixKey, match: Match) -> Iterator[tuple[int, Bundle]]:
        """Yield (position, bundle) along a match, deepest first, all a prompt could use.

        They are found by hash: whoever uses one compares its tokens.
        """
        if match.root is None:
            return
        nodes = [match.root, *match.path]
        while nodes:
            parent = nodes.pop()
            if not parent.bundles:
                continue
            deepest = min(parent.end + self.page_size, key.last_grid)
            for position in range(deepest, parent.end, -GRID):
                bundle = parent.bundles.get(key.hash_at(position))
                if bundle is not None:
                    yield position, bundle

    def insert(self, parent: Node, key: PrefixKey, end: int, page_id: int) -> Node:
        """Add the page of a prompt's positions [parent.end, end); it must not be known."""
        node = Node(parent, key.hash_at(end), key.span(parent.end, end), page_id)
        if parent.children is None:
            parent.children = {}
        parent.children[node.hash] = node
        for _, prefix_hash in node.grid_inside():
            if parent.inner is None:
                parent.inner = {}
            parent.inner[prefix_hash] = node
        return node

    def rehome(self, node: Node) -> list[Node]:
        """Move bundles from shorter pages to `node`, which goes on from there.

        A locked one stays: its holder has locked the page it lies in.

        Returns:
            The pages they lay in.
        """
        parent, left = node.parent, []
        for _, prefix_hash in node.grid_inside():
            bundle = parent.bundles.get(prefix_hash) if parent and parent.bundles else None
            if bundle is not None and not bundle.locks and bundle.node.end < node.end:
                left.append(bundle.node)
                _unhome(bundle, bundle.node)
                bundle.node = node
                _home(bundle, node)
        return left

    def add_bundle(self, bundle: Bundle) -> None:
        """Make a bundle findable; its place must be empty."""
        node, parent = bundle.node, bundle.node.parent
        if parent is None:
            raise ValueError("a bundle lies behind a page, not at a root")
        if parent.bundles is None:
            parent.bundles = {}
        parent.bundles[bundle.prefix_hash] = bundle
        _home(bundle, node)

    def home(self, bundle: Bundle) -> None:
        """Let a bundle need its page, without being findable by a prompt."""
        _home(bundle, bundle.node)

    def remove_bundle(self, bundle: Bundle) -> None:
        """Forget a bundle."""
        node, parent = bundle.node, bundle.node.parent
        found = parent.bundles if parent is not None else None
        if found is not None and found.get(bundle.prefix_hash) is bundle:
            del found[bundle.prefix_hash]
        _unhome(bundle, node)

    def remove(self, node: Node) -> None:
        """Forget a page that nothing hangs on, or a root with all below it."""
        parent = node.parent
        node.is_attached = False
        if parent is None:
            self.roots.pop(node.hash, None)
            return
        if parent.children is None:
            return
        parent.children.pop(node.hash, None)
        for position, prefix_hash in node.grid_inside():
            if parent.inner is None or parent.inner.get(prefix_hash) is not node:
                continue
            head = node.tokens[: (position - node.start) * TOKEN_BYTES]
            heir = next(
                (
                    child
                    for child in parent.children.values()
                    if child.end > position and child.tokens.startswith(head)
                ),
                None,
            )
            if heir is None:
                del parent.inner[prefix_hash]
            else:
                parent.inner[prefix_hash] = heir

    def nodes(self) -> Iterator[Node]:
        """Yield every page that can be reached."""
        for root in self.roots.values():
            for node in root.walk():
                if node is not root:
                    yield node


def _home(bundle: Bundle, node: Node) -> None:
    if node.homed is None:
        node.homed = []
    node.homed.append(bundle)


def _unhome(bundle: Bundle, node: Node) -> None:
    if node.homed is not None:
        node.homed.remove(bundle)
