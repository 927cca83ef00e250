"""Physical pages of one cache group: who refers to them, which are free. Knows nothing of tokens or tensors."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.engine.attention.base import TRASH_PAGE


class PagePool:
    """Counts references to pages 1 .. num_pages - 1; page 0 is the trash page and never handed out.

    A page is free, or referred to by any number of requests and at most once by the prefix cache.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._refs = [0] * num_pages
        # A stack: the page freed last is warmest in the processor's cache.
        self._free = list(range(num_pages - 1, TRASH_PAGE, -1))

    @property
    def total(self) -> int:
        """Pages that can be handed out."""
        return self.num_pages - 1

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Takes `count` free pages, one reference each. The caller has checked `num_free`."""
        if count > len(self._free):
            raise IndexError(f"{count} pages asked for, {len(self._free)} are free")
        taken = [self._free.pop() for _ in range(count)]
        for page in taken:
            self._refs[page] = 1
        return taken

    def share(self, pages: Iterable[int]) -> None:
        """One more reference to each page; holes (the trash page) are passed over."""
        for page in pages:
            if page != TRASH_PAGE:
                self._refs[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """One reference less to each page; the last one frees it."""
        for page in pages:
            if page == TRASH_PAGE:
                continue
            self._refs[page] -= 1
            if self._refs[page] == 0:
                self._free.append(page)
            elif self._refs[page] < 0:
                raise IndexError(f"page {page} was released more often than taken")

    def refs(self, page: int) -> int:
        """References to a page now."""
        return self._refs[page]

    def count_taken(self, cells: list[int], start: int, size: int) -> None:
        """Adds to each cell of `size` pages how many of its pages are not free; page 1 has the place `start`."""
        place = start
        while place < start + self.total:
            end = min((place // size + 1) * size, start + self.total)
            refs = self._refs[place - start + 1 : end - start + 1]
            cells[place // size] += len(refs) - refs.count(0)
            place = end

    def check_integrity(self, expected: dict[int, int]) -> None:
        """Raises RuntimeError unless every page is free or has exactly the references of `expected` {page: count}."""
        if len(set(self._free)) != len(self._free) or TRASH_PAGE in self._free:
            raise RuntimeError("the free list holds a page twice or the trash page")
        known = [0] * self.num_pages
        for page, count in expected.items():
            known[page] = count
        known[TRASH_PAGE] = self._refs[TRASH_PAGE]
        if known != self._refs:
            page = next(page for page in range(self.num_pages) if known[page] != self._refs[page])
            raise RuntimeError(f"page {page} has {self._refs[page]} references, {known[page]} are known")
        if len(self._free) + len(expected) - (TRASH_PAGE in expected) != self.total:
            raise RuntimeError("free and referenced pages do not add up")
