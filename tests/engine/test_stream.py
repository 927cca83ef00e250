"""Events on their way to readers: in order, to threads and asyncio alike, and cheaply for many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from octavo.engine.request import Delta, Event, Finished, Timings, Usage
from octavo.engine.stream import WAKE_INTERVAL_S, EventStream, RequestHandle, Waker

END = Finished("a", "length", Usage(1, 0, 2), Timings(0.0, 0.0, 0.0, 0.0))


class CountingLoop:
    """Says how often another thread called it."""

    def __init__(self) -> None:
        self.calls: list[list[asyncio.Event]] = []

    def call_soon_threadsafe(self, callback: Callable[..., Any], events: list[asyncio.Event]) -> None:
        self.calls.append(events)
        callback(events)


def test_a_loop_is_called_once_for_all_its_readers() -> None:
    loop, clock = CountingLoop(), [10.0]
    waker = Waker(lambda: clock[0])
    readers = []
    for _ in range(5):
        stream = EventStream()
        readers.append(asyncio.Event())
        stream._async_reader = (loop, readers[-1])  # type: ignore[assignment]
        waker.add(stream)
    waker.flush()
    assert [len(events) for events in loop.calls] == [5]
    assert all(ready.is_set() for ready in readers)


def test_readers_are_not_woken_for_every_token_but_at_once_for_an_end() -> None:
    loop, clock = CountingLoop(), [10.0]
    waker, stream = Waker(lambda: clock[0]), EventStream()
    stream._async_reader = (loop, asyncio.Event())  # type: ignore[assignment]
    for _ in range(3):
        waker.add(stream)
        waker.flush()
    assert len(loop.calls) == 1
    clock[0] += 2 * WAKE_INTERVAL_S
    waker.flush()
    assert len(loop.calls) == 2
    waker.add(stream, urgent=True)
    waker.flush()
    assert len(loop.calls) == 3
    waker.add(stream)
    waker.flush()
    assert len(loop.calls) == 3


def test_a_loop_that_was_closed_stops_nobody_else() -> None:
    closed, open_loop = asyncio.new_event_loop(), CountingLoop()
    closed.close()
    waker = Waker(lambda: 10.0)
    for loop in (closed, open_loop):
        stream = EventStream()
        stream._async_reader = (loop, asyncio.Event())  # type: ignore[assignment]
        waker.add(stream)
    waker.flush()
    assert len(open_loop.calls) == 1


def test_a_thread_goes_on_where_an_async_reader_left_off() -> None:
    stream = EventStream()
    handle = RequestHandle("a", 1, stream, lambda _: None)
    stream.push(Delta("a", "x", token_ids=(1,)))

    async def first() -> Event:
        events = handle.stream()
        event = await anext(events)
        await events.aclose()  # type: ignore[attr-defined]
        return event

    assert asyncio.run(first()) == Delta("a", "x", token_ids=(1,))
    stream.push(Delta("a", "y", token_ids=(2,)))
    stream.push(Delta("a", "z", token_ids=(3,)))
    stream.push(END)
    stream.wake()
    assert list(handle) == [Delta("a", "yz", token_ids=(2, 3)), END]
