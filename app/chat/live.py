"""Fan-out of live events to any number of subscribers on one event loop, none of which can slow a reply."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

T = TypeVar("T")

BACKLOG = 512  # events a subscriber may lag behind; then it starts over from a fresh beginning


class Subscription(AsyncIterator[T], Generic[T]):
    """One subscriber's events, in order, from the moment it was made. Ends when the hub is closed or `close` is called.

    A subscriber that stops reading costs a bounded backlog; when it reads again it gets what a new subscriber would.
    """

    def __init__(self, hub: Hub[T], begin: Callable[[T | None], list[T]]) -> None:
        self._hub = hub
        self._begin = begin
        self._events: deque[T] = deque(begin(None))
        self._wake = asyncio.Event()
        self._closed = False

    def __aiter__(self) -> Subscription[T]:
        return self

    async def __anext__(self) -> T:
        while not self._events:
            if self._closed:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        return self._events.popleft()

    def put(self, event: T) -> None:
        if self._closed:
            return
        if len(self._events) >= BACKLOG:
            self._events = deque(self._begin(event))
        else:
            self._events.append(event)
        self._wake.set()

    def close(self) -> None:
        """No further events; what was not read yet still comes."""
        self._closed = True
        self._hub.discard(self)
        self._wake.set()

    async def aclose(self) -> None:
        self._events.clear()
        self.close()


class Hub(Generic[T]):
    """The subscribers of one thing."""

    def __init__(self) -> None:
        self._subscriptions: list[Subscription[T]] = []

    def subscribe(self, begin: Callable[[T | None], list[T]]) -> Subscription[T]:
        """A new subscription whose first events are `begin(None)`; nothing published afterwards is missed.

        `begin(event)` is the same for one that lagged behind until `event`: its result makes all before superfluous.
        """
        subscription = Subscription(self, begin)
        self._subscriptions.append(subscription)
        return subscription

    def publish(self, event: T) -> None:
        for subscription in tuple(self._subscriptions):
            subscription.put(event)

    def discard(self, subscription: Subscription[T]) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)

    def close(self) -> None:
        for subscription in tuple(self._subscriptions):
            subscription.close()

    def __len__(self) -> int:
        return len(self._subscriptions)
