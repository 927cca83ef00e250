"""RadixAttention's tree over pages (Zheng et al., SGLang, 2024): chats that begin alike share their first pages.

A node holds a run of whole pages; an edge is chosen by the tokens of a child's first page. A node in use by a
request is locked together with all its ancestors; unlocked leaves are evicted from their tail, least recently
used first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from octavo.engine.attention.base import TRASH_PAGE
from octavo.engine.memory.pool import PagePool
from octavo.engine.memory.prefix import Match, PrefixCache


class _Node:
    __slots__ = ("children", "end", "lock", "pages", "parent", "tokens")

    def __init__(self, tokens: tuple[int, ...], pages: list[tuple[int, ...]], parent: _Node | None) -> None:
        self.tokens = tokens  # page_size tokens for each of `pages`
        self.pages = pages  # a logical page: one physical page a group, TRASH_PAGE where a window has passed
        self.parent = parent
        self.end: int = len(pages) + (parent.end if parent is not None else 0)  # pages from the root to its last
        self.children: dict[tuple[int, ...], _Node] = {}
        self.lock = 0  # requests that hold this node or a descendant


class RadixTree(PrefixCache):
    """`windows` gives each group's attention window in tokens, None for full attention.

    A windowed group's pages behind the window may be missing from a node; a match must have all its next token sees.
    """

    def __init__(self, pools: Sequence[PagePool], page_size: int, windows: Sequence[int | None] | None = None) -> None:
        super().__init__(pools, page_size)
        self._windows = tuple(windows) if windows is not None else (None,) * len(self.pools)
        self._root = _Node((), [], None)
        self._leaves: OrderedDict[_Node, None] = OrderedDict()  # unlocked leaves, least recently used first
        self._evictable = [0] * len(self.pools)  # pages in unlocked nodes, by group

    # -- looking up ---------------------------------------------------------------------------------------------------

    def peek(self, tokens: Sequence[int]) -> int:
        return self._usable(self._walk(tokens))[0] * self.page_size

    def match(self, tokens: Sequence[int]) -> Match:
        path = self._walk(tokens)
        num_pages, pages = self._usable(path)
        if num_pages == 0:
            return Match(0, [[] for _ in self.pools])
        before, place = 0, 0
        while before + path[place][1] < num_pages:
            before, place = before + path[place][1], place + 1
        node = path[place][0]
        if num_pages - before < len(node.pages):
            node = self._split(node, num_pages - before)
        self._lock(node)
        for pool, held in zip(self.pools, pages, strict=True):
            pool.share(held)
        return Match(num_pages * self.page_size, pages, node)

    def _walk(self, tokens: Sequence[int]) -> list[tuple[_Node, int]]:
        """The path of nodes that agree with `tokens`, each with how many of its pages do; leaves a token to compute."""
        size, path, node, begin = self.page_size, [], self._root, 0
        limit = (len(tokens) - 1) // size * size
        while begin < limit:
            child = node.children.get(tuple(tokens[begin : begin + size]))
            if child is None:
                break
            same = self._common_pages(child, tokens, begin, limit)
            path.append((child, same))
            if same < len(child.pages):
                break
            node, begin = child, begin + same * size
        return path

    def _common_pages(self, node: _Node, tokens: Sequence[int], begin: int, limit: int) -> int:
        """Pages at the start of `node` that equal tokens[begin:limit]."""
        most = min(len(node.pages), (limit - begin) // self.page_size)
        if node.tokens[: most * self.page_size] == tuple(tokens[begin : begin + most * self.page_size]):
            return most
        for index in range(most):
            a, b = index * self.page_size, (index + 1) * self.page_size
            if node.tokens[a:b] != tuple(tokens[begin + a : begin + b]):
                return index
        return most

    def _usable(self, path: list[tuple[_Node, int]]) -> tuple[int, list[list[int]]]:
        """The longest prefix of the path that every windowed group can continue from, and its pages by group."""
        rows = [row for node, used in path for row in node.pages[:used]]
        best = len(rows)
        if any(window is not None for window in self._windows):
            runs = [0] * len(self.pools)  # pages present without a gap, counted back from here
            best = 0
            for depth, row in enumerate(rows, 1):
                fits = True
                for group, window in enumerate(self._windows):
                    runs[group] = runs[group] + 1 if row[group] != TRASH_PAGE else 0
                    seen = depth * self.page_size if window is None else min(depth * self.page_size, window - 1)
                    fits &= runs[group] * self.page_size >= seen
                if fits:
                    best = depth
        pages = [[row[group] for row in rows[:best]] for group in range(len(self.pools))]
        return best, pages

    # -- growing ------------------------------------------------------------------------------------------------------

    def extend(
        self, handle: object | None, tokens: Sequence[int], pages: Sequence[Sequence[int]], num_certain: int
    ) -> object | None:
        num_pages = num_certain // self.page_size
        if isinstance(handle, _Node) and handle.end < num_pages and handle.lock == 1 and not handle.children:
            self._grow(handle, tokens, pages, num_pages)
            return handle
        node = self._insert(tokens, pages, num_pages)
        if node is self._root:
            return handle
        self._lock(node)
        if isinstance(handle, _Node):
            self._unlock(handle)
        return node

    def adopt(self, handle: object | None, before: object | None, pages: Sequence[list[int]]) -> bool:
        replaced, node = False, handle
        while isinstance(node, _Node) and node is not before and node is not self._root:
            begin = node.end - len(node.pages)
            for index, row in enumerate(node.pages, begin):
                for pool, held, page in zip(self.pools, pages, row, strict=True):
                    if page != held[index] and TRASH_PAGE not in (page, held[index]):
                        pool.share([page])
                        pool.release([held[index]])
                        held[index], replaced = page, True
            node = node.parent
        return replaced

    def _grow(self, node: _Node, tokens: Sequence[int], pages: Sequence[Sequence[int]], end: int) -> None:
        """Adds pages to a leaf that ends the path of the one request that holds it: as good as a child, and the path
        of a long reply stays short."""
        begin, size = node.end, self.page_size
        added = [held[begin:end] for held in pages]
        for pool, of_group in zip(self.pools, added, strict=True):
            pool.share(of_group)
        node.tokens += tuple(tokens[begin * size : end * size])
        node.pages += zip(*added, strict=True)
        node.end = end

    def finish(
        self, handle: object | None, tokens: Sequence[int], pages: Sequence[Sequence[int]], num_certain: int
    ) -> None:
        if num_certain:
            self._insert(tokens, pages, num_certain // self.page_size)
        if isinstance(handle, _Node):
            self._unlock(handle)
        for pool, held in zip(self.pools, pages, strict=True):
            pool.release(held)

    def _insert(self, tokens: Sequence[int], pages: Sequence[Sequence[int]], num_pages: int) -> _Node:
        """Adds the pages that are not there yet and returns the node that ends them. Known pages are kept as they are,
        but a hole in a windowed group is filled."""
        size, node, done = self.page_size, self._root, 0
        while done < num_pages:
            child = node.children.get(tuple(tokens[done * size : (done + 1) * size]))
            if child is None:
                return self._append(node, tokens, pages, done, num_pages)
            same = self._common_pages(child, tokens, done * size, num_pages * size)
            if same < len(child.pages):
                child = self._split(child, same)
            self._fill_holes(child, pages, done)
            self._touch(child)
            node, done = child, done + same
        return node

    def _append(
        self, parent: _Node, tokens: Sequence[int], pages: Sequence[Sequence[int]], begin: int, end: int
    ) -> _Node:
        added = [held[begin:end] for held in pages]
        tokens = tuple(tokens[begin * self.page_size : end * self.page_size])
        node = _Node(tokens, list(zip(*added, strict=True)), parent)
        for group, (pool, of_group) in enumerate(zip(self.pools, added, strict=True)):
            pool.share(of_group)
            self._evictable[group] += len(of_group) - of_group.count(TRASH_PAGE)
        parent.children[node.tokens[: self.page_size]] = node
        self._leaves.pop(parent, None)
        self._leaves[node] = None
        return node

    def _fill_holes(self, node: _Node, pages: Sequence[Sequence[int]], begin: int) -> None:
        for index, row in enumerate(node.pages):
            if TRASH_PAGE not in row:
                continue
            filled = list(row)
            for group, page in enumerate(row):
                offered = pages[group][begin + index]
                if page == TRASH_PAGE and offered != TRASH_PAGE:
                    filled[group] = offered
                    self.pools[group].share([offered])
                    self._evictable[group] += node.lock == 0
            node.pages[index] = tuple(filled)

    def _split(self, node: _Node, num_pages: int) -> _Node:
        """Cuts a node after `num_pages`; returns the new upper part, which keeps the lock of the whole."""
        size = self.page_size
        upper = _Node(node.tokens[: num_pages * size], node.pages[:num_pages], node.parent)
        upper.lock = node.lock
        assert node.parent is not None
        node.parent.children[upper.tokens[:size]] = upper
        node.tokens, node.pages, node.parent = node.tokens[num_pages * size :], node.pages[num_pages:], upper
        upper.children[node.tokens[:size]] = node
        return upper

    # -- locks and eviction -------------------------------------------------------------------------------------------

    def _lock(self, node: _Node | None) -> None:
        while node is not None and node is not self._root:
            if node.lock == 0:
                self._leaves.pop(node, None)
                self._count(node, -1)
            node.lock += 1
            node = node.parent

    def _unlock(self, node: _Node | None) -> None:
        while node is not None and node is not self._root:
            node.lock -= 1
            if node.lock == 0:
                self._count(node, +1)
                if not node.children:
                    self._leaves[node] = None
            node = node.parent

    def _touch(self, node: _Node) -> None:
        if node in self._leaves:
            self._leaves.move_to_end(node)

    def _count(self, node: _Node, sign: int) -> None:
        for group in range(len(self.pools)):
            self._evictable[group] += sign * sum(row[group] != TRASH_PAGE for row in node.pages)

    def num_evictable(self, group: int) -> int:
        idle = self._evictable[group]
        return idle if self._windows[group] is None else idle + sum(1 for _ in self._passed(group))

    def evict(self, group: int, count: int) -> int:
        freed = 0
        while freed < count and self._leaves:
            leaf = next(iter(self._leaves))
            freed += self._trim(leaf, group, count - freed)
        if freed < count and self._windows[group] is not None:
            freed += self._punch(group, count - freed)
        return freed

    def _trim(self, leaf: _Node, group: int, count: int) -> int:
        """Drops pages from a leaf's tail until `count` of the group are freed or the leaf is gone."""
        freed = 0
        while leaf.pages and freed < count:
            row = leaf.pages.pop()
            leaf.end -= 1
            for index, (pool, page) in enumerate(zip(self.pools, row, strict=True)):
                self._evictable[index] -= page != TRASH_PAGE
                pool.release([page])
            freed += row[group] != TRASH_PAGE
        leaf_key = leaf.tokens[: self.page_size]
        leaf.tokens = leaf.tokens[: len(leaf.pages) * self.page_size]
        if not leaf.pages:
            del self._leaves[leaf]
            parent = leaf.parent
            assert parent is not None
            del parent.children[leaf_key]
            if not parent.children and parent.lock == 0 and parent is not self._root:
                self._leaves[parent] = None
                self._leaves.move_to_end(parent, last=False)
        return freed

    def _passed(self, group: int) -> Iterator[tuple[_Node, int]]:
        """(node, index) of locked pages of a windowed group that no request refers to any more."""
        pool = self.pools[group]
        for node in self._nodes():
            if node.lock:
                for index, row in enumerate(node.pages):
                    if row[group] != TRASH_PAGE and pool.refs(row[group]) == 1:
                        yield node, index

    def _punch(self, group: int, count: int) -> int:
        """Makes holes where windows have passed in chats that still run."""
        found = [place for place, _ in zip(self._passed(group), range(count), strict=False)]
        for node, index in found:
            row = list(node.pages[index])
            self.pools[group].release([row[group]])
            row[group] = TRASH_PAGE
            node.pages[index] = tuple(row)
        return len(found)

    # -- housekeeping -------------------------------------------------------------------------------------------------

    def _nodes(self) -> Iterator[_Node]:
        stack = list(self._root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def cached_pages(self, group: int) -> Iterator[int]:
        return (row[group] for node in self._nodes() for row in node.pages if row[group] != TRASH_PAGE)

    def clear(self) -> None:
        while self._leaves:
            leaf = next(iter(self._leaves))
            self._trim(leaf, 0, len(leaf.pages) + 1)

    def check_integrity(self) -> None:
        evictable = [0] * len(self.pools)
        for node in self._nodes():
            if not node.pages or len(node.tokens) != len(node.pages) * self.page_size:
                raise RuntimeError("a node's tokens and pages do not fit together")
            if node.parent is not None and node.end != node.parent.end + len(node.pages):
                raise RuntimeError("a node does not know where it ends")
            if node.parent is None or node.parent.children.get(node.tokens[: self.page_size]) is not node:
                raise RuntimeError("a node is not where its parent looks for it")
            below = sum(child.lock for child in node.children.values())
            if node.lock < below:
                raise RuntimeError("a node is locked less often than its children")
            if (node in self._leaves) != (node.lock == 0 and not node.children):
                raise RuntimeError("the list of unlocked leaves is wrong")
            if node.lock == 0:
                for group in range(len(self.pools)):
                    evictable[group] += sum(row[group] != TRASH_PAGE for row in node.pages)
        if evictable != self._evictable:
            raise RuntimeError(f"{evictable} pages are evictable, {self._evictable} were counted")
