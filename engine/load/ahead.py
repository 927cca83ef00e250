"""Reading a few tensors ahead in threads, while the ones before them are used."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

READERS = 4  # threads: one alone is held up by the pages of memory that the system must clear first
AHEAD_BYTES = 256 << 20  # of tensors read before they are asked for

T = TypeVar("T")
R = TypeVar("R")


def read_ahead(
    wanted: Iterable[tuple[T, int]], read: Callable[[T], R], limit: int = AHEAD_BYTES
) -> Iterator[tuple[T, R]]:
    """What `read` makes of every entry, in order. The number beside an entry is the bytes it will take; at most
    `limit` of these wait."""
    ahead: deque[tuple[T, int, Future[R]]] = deque()
    held = 0
    readers = ThreadPoolExecutor(READERS, thread_name_prefix="octavo-read")
    try:
        for entry, size in wanted:
            while ahead and held + size > limit:
                first, done, reading = ahead.popleft()
                held -= done
                yield first, reading.result()
            ahead.append((entry, size, readers.submit(read, entry)))
            held += size
        while ahead:
            first, _, reading = ahead.popleft()
            yield first, reading.result()
    finally:
        readers.shutdown(cancel_futures=True)
