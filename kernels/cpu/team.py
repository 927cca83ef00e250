"""How threads share a phase of work: units are taken one by one, and a phase is over when all are done.

A phase has TEAM + 1 counters, each in a line of memory of its own: units taken out of each thread's share, and units
done. A thread takes its own share first, in order, then what is left of the others'.
"""

from __future__ import annotations

from numba import njit

from octavo.kernels.cpu.fields import LINE
from octavo.kernels.cpu.numbers import EXACT, atomic_add, atomic_load, give_way, pause

_PATIENCE = 1024  # looks at a counter, some 50 us, before the processor is offered to others


@njit(**EXACT)
def claim(counters, units, team, thread):  # type: ignore[no-untyped-def]
    """A unit nobody else has; -1 if none is left."""
    for step in range(team):
        share = (thread + step) % team
        first = units * share // team
        size = units * (share + 1) // team - first
        counter = counters + share * LINE
        if atomic_load(counter) < size:
            taken = atomic_add(counter, 1)
            if taken < size:
                return first + taken
    return -1


@njit(**EXACT)
def is_open(counters, units, team):  # type: ignore[no-untyped-def]
    """Whether a unit may still be there."""
    for share in range(team):
        if atomic_load(counters + share * LINE) < units * (share + 1) // team - units * share // team:
            return True
    return False


@njit(**EXACT)
def finish(counters, units, team, done):  # type: ignore[no-untyped-def]
    """Counts the own units, then waits for all others'."""
    total = counters + team * LINE
    if done:
        atomic_add(total, done)
    turns = 0
    while atomic_load(total) < units:
        pause()
        turns += 1
        if turns % _PATIENCE == 0:
            give_way()
