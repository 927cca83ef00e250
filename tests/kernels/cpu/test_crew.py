"""Helper threads join work that is still open, are not waited for, and end when they are dismissed."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable

import pytest

from octavo.kernels.cpu.crew import Crew


def until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
    return condition()


def helpers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("cpu-")}


def test_everyone_gets_the_work_with_a_number_of_its_own() -> None:
    crew, seen, everyone = Crew(2), {}, threading.Barrier(3, timeout=10)

    def work(gate: int, ticket: int, thread: int, argument: str) -> None:
        seen[thread] = (gate, ticket, argument)
        everyone.wait()

    crew.run(work, "page")
    assert crew.size == 3
    assert sorted(seen) == [0, 1, 2]
    assert len(set(seen.values())) == 1
    crew.close()


def test_a_helper_that_comes_late_gets_only_the_newest_work() -> None:
    crew, here, busy, tickets = Crew(1), threading.Event(), threading.Event(), []

    def slow(_gate: int, _ticket: int, thread: int) -> None:
        if thread:
            here.set()
            busy.wait(10)
        else:
            here.wait(10)

    def quick(_gate: int, ticket: int, thread: int) -> None:
        if thread:
            tickets.append(ticket)

    crew.run(slow)
    for _ in range(5):
        crew.run(quick)  # returns although the helper is still at the first one
    busy.set()
    assert until(lambda: tickets == [6])
    crew.close()


@pytest.mark.parametrize("forget", [False, True], ids=["closed", "forgotten"])
def test_helpers_end_with_their_crew(forget: bool) -> None:
    before = helpers()  # those of models that earlier tests have left behind end at any time
    crew = Crew(2)
    mine = helpers() - before
    assert len(mine) == 2
    if forget:
        del crew
        gc.collect()
    else:
        crew.close()
    assert until(lambda: not mine & helpers())


def test_a_crew_of_one_starts_no_thread() -> None:
    before, done = helpers(), []
    crew = Crew(0)
    crew.run(lambda _gate, _ticket, thread: done.append(thread))
    assert done == [0]
    assert not helpers() - before
