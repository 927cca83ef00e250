"""Slows down those who guess: so many wrong keys from one address, and then a wait."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable

FREE = 5  # wrong keys an address may send at once
REFILL_S = 10.0  # and one more after so long
FREE_IN_ALL = 50  # of all addresses together: IPv6 has many for everybody
REFILL_IN_ALL_S = 1.0
REMEMBERED = 1024


class Attempts:
    """Counts failures by address: an IPv4 address, or an IPv6 network of 64 bits. Not thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._owed: OrderedDict[str, tuple[float, float]] = OrderedDict()  # address -> failures not forgiven, when
        self._owed_in_all = (0.0, 0.0)

    def wait_s(self, address: str) -> float:
        """Seconds until this address may try again; 0: now."""
        now = self._clock()
        own = _left(self._owed.get(_network(address), (0.0, now)), now, REFILL_S)
        total = _left(self._owed_in_all, now, REFILL_IN_ALL_S)
        return max(0.0, (own - FREE + 1) * REFILL_S, (total - FREE_IN_ALL + 1) * REFILL_IN_ALL_S)

    def failed(self, address: str) -> None:
        """A wrong key came from there."""
        now, network = self._clock(), _network(address)
        self._owed[network] = (_left(self._owed.pop(network, (0.0, now)), now, REFILL_S) + 1, now)
        self._owed_in_all = (_left(self._owed_in_all, now, REFILL_IN_ALL_S) + 1, now)
        while len(self._owed) > REMEMBERED:
            self._owed.popitem(last=False)


def _left(owed: tuple[float, float], now: float, refill_s: float) -> float:
    count, at = owed
    return max(0.0, count - (now - at) / refill_s)


def _network(address: str) -> str:
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(known, ipaddress.IPv6Address):
        if known.ipv4_mapped is not None:
            return str(known.ipv4_mapped)
        return str(ipaddress.ip_network((known, 64), strict=False))
    return str(known)
