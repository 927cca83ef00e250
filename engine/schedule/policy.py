"""In which order waiting requests are looked at."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from octavo.engine.errors import OctavoError
from octavo.engine.memory.prefix import PrefixCache
from octavo.engine.request import Request, RequestStatus

MANY_WAITING = 128  # beyond this the tree walks of longest-prefix cost more than they save (as SGLang found)
OVERDUE_S = 5.0  # a request that has waited so long is served first, whatever its prefix


class Policy(Protocol):
    """Orders waiting requests. `strict`: a request that does not fit holds up those behind it."""

    strict: bool

    def order(self, waiting: Iterable[Request], prefix: PrefixCache, now_s: float) -> list[Request]: ...


class FirstComeFirstServed:
    """By arrival; requests that ran before come first, since the scheduler puts them at the front."""

    strict = True

    def order(self, waiting: Iterable[Request], prefix: PrefixCache, now_s: float) -> list[Request]:
        return list(waiting)


class LongestPrefixFirst:
    """SGLang's cache-aware order: the request with most of its prompt in the cache first, so that shared pages are used
    before they are evicted. Preempted and overdue requests keep their place at the front."""

    strict = False

    def order(self, waiting: Iterable[Request], prefix: PrefixCache, now_s: float) -> list[Request]:
        queue = list(waiting)
        if len(queue) > MANY_WAITING:
            return queue
        first = [r for r in queue if r.status is RequestStatus.PREEMPTED or now_s - r.arrival_s > OVERDUE_S]
        rest = [r for r in queue if r not in first]
        found = {r.id: prefix.peek(r.tokens) for r in rest}
        return first + sorted(rest, key=lambda r: -found[r.id])


def make_policy(name: str) -> Policy:
    """The policy of that configuration value."""
    policies: dict[str, type[FirstComeFirstServed | LongestPrefixFirst]] = {
        "fcfs": FirstComeFirstServed,
        "longest-prefix": LongestPrefixFirst,
    }
    if name not in policies:
        raise OctavoError(f"There is no scheduler named {name!r}.", remedy=f"Choose one of {', '.join(policies)}.")
    return policies[name]()
