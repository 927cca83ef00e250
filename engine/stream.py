"""From the engine's thread to whoever reads a reply: a blocking iterator for threads, an async one for asyncio.

Readers are woken at most once per WAKE_INTERVAL_S, whatever the model's speed, and those of one asyncio loop all at
once: waking a reader for every token would take the interpreter from the engine's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from octavo.engine.request import Delta, Event, Finished, TokenLogprob

WAKE_INTERVAL_S = 0.008


class EventStream:
    """One request's events, in order, read once by one reader."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._ready = threading.Condition()
        self._async_reader: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._ended = False

    def push(self, event: Event) -> None:
        """Called by the engine's thread; does not wake anybody."""
        self._events.append(event)

    def wake(self) -> None:
        """Called by the engine's thread when what was pushed should be seen."""
        wake_all([self])

    def notify(self) -> tuple[asyncio.AbstractEventLoop, asyncio.Event] | None:
        """Wakes a reading thread; if asyncio reads, returns the loop and what to set there instead."""
        if self._async_reader is None:
            with self._ready:
                self._ready.notify_all()
        return self._async_reader

    def __iter__(self) -> Iterator[Event]:
        self._async_reader = None
        while not self._ended:
            with self._ready:
                while not self._events:
                    self._ready.wait()
            yield from self._drain()

    async def stream(self) -> AsyncIterator[Event]:
        """The same for asyncio; reading continues where it was left off."""
        ready = asyncio.Event()
        self._async_reader = asyncio.get_running_loop(), ready  # set before looking for events: none is missed
        while not self._ended:
            if not self._events:
                await ready.wait()
            ready.clear()
            for event in self._drain():
                yield event

    def _drain(self) -> list[Event]:
        events: list[Event] = []
        while self._events:
            event = self._events.popleft()
            previous = events[-1] if events else None
            # Reasoning comes before text: two deltas become one only where that keeps the order.
            if isinstance(event, Delta) and isinstance(previous, Delta) and not (previous.text and event.reasoning):
                events[-1] = _joined(previous, event)
            else:
                events.append(event)
            if isinstance(event, Finished):
                self._ended = True
        return events


def _joined(first: Delta, second: Delta) -> Delta:
    return replace(
        first,
        text=first.text + second.text,
        reasoning=first.reasoning + second.reasoning,
        token_ids=first.token_ids + second.token_ids,
        logprobs=first.logprobs + second.logprobs,
    )


def wake_all(streams: Iterable[EventStream]) -> None:
    """Wakes the readers of these streams, each asyncio loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Event]] = {}
    for stream in streams:
        reader = stream.notify()
        if reader is not None:
            by_loop.setdefault(reader[0], []).append(reader[1])
    for loop, ready in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody reads there any more
            loop.call_soon_threadsafe(_set_all, ready)


def _set_all(ready: list[asyncio.Event]) -> None:
    for event in ready:
        event.set()


class Waker:
    """Collects streams with news during a step and wakes their readers together, not too often."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: dict[EventStream, None] = {}
        self._last_s = 0.0
        self._urgent = False

    def add(self, stream: EventStream, *, urgent: bool = False) -> None:
        """This stream has news, which the next flush brings if they are `urgent`."""
        self._waiting[stream] = None
        self._urgent |= urgent

    def flush(self, *, now: bool = False) -> None:
        """Wakes the readers if the last time is long enough ago, or at once if `now` or something is urgent."""
        if not self._waiting:
            return
        time_s = self._clock()
        if not now and not self._urgent and time_s - self._last_s < WAKE_INTERVAL_S:
            return
        streams, self._waiting = self._waiting, {}
        self._last_s, self._urgent = time_s, False
        wake_all(streams)


@dataclass(frozen=True, slots=True)
class Completed:
    """A whole reply, for callers that do not stream."""

    text: str
    reasoning: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finished: Finished


class RequestHandle:
    """The caller's side of a submitted request: its id, its events, and the way to end it."""

    def __init__(self, request_id: str, prompt_tokens: int, stream: EventStream, abort: Callable[[str], None]) -> None:
        self.id = request_id
        self.prompt_tokens = prompt_tokens
        self._stream = stream
        self._abort = abort

    def __iter__(self) -> Iterator[Event]:
        return iter(self._stream)

    def stream(self) -> AsyncIterator[Event]:
        """Events for asyncio; the last one is Finished. Leaving the loop early does not end the request: see abort."""
        return self._stream.stream()

    def abort(self) -> None:
        """Ends the request; what it produced so far stays readable, then Finished("aborted") follows."""
        self._abort(self.id)

    def result(self) -> Completed:
        """Blocks until the reply is complete."""
        return collect(list(self))

    async def aresult(self) -> Completed:
        """Waits until the reply is complete."""
        return collect([event async for event in self.stream()])


def collect(events: list[Event]) -> Completed:
    """Puts a request's events together; the last one must be Finished."""
    deltas = [event for event in events if isinstance(event, Delta)]
    finished = events[-1]
    assert isinstance(finished, Finished)
    return Completed(
        text="".join(d.text for d in deltas),
        reasoning="".join(d.reasoning for d in deltas),
        token_ids=tuple(token for d in deltas for token in d.token_ids),
        logprobs=tuple(entry for d in deltas for entry in d.logprobs),
        finished=finished,
    )
