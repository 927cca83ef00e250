"""The one function that is called from Python, by the engine's thread and by its helpers alike."""

from __future__ import annotations

from octavo.kernels.cpu.crew import ACTIVE, OPEN
from octavo.kernels.cpu.decode import decode, expand, project
from octavo.kernels.cpu.numbers import atomic_add, atomic_load, atomic_store, give_way


def enter(gate, ticket, thread, task, table, kind):  # type: ignore[no-untyped-def]
    """Thread 0 does the work, shuts the gate and waits until nobody else is inside; others join if they are in time.

    `task` 0 is a decode step, 1 the head's product, 2 the expansion of codes; what
    `table` and `kind` are says decode.py.
    """
    atomic_add(gate + ACTIVE * 8, 1)
    if atomic_load(gate + OPEN * 8) == ticket:
        if task == 0:
            decode(kind, table, thread)
        elif task == 1:
            project(kind, table, thread)
        else:
            expand(table, thread)
    if thread == 0:
        atomic_store(gate + OPEN * 8, 0)
    atomic_add(gate + ACTIVE * 8, -1)
    if thread == 0:
        while atomic_load(gate + ACTIVE * 8) > 0:
            give_way()
