"""Python leaves a loaded engine in peace, and its collector finds the engine's cycles once it is closed."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator

import pytest

from octavo.engine import interpreter


class Cycle:
    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    thresholds, interval = gc.get_threshold(), sys.getswitchinterval()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    sys.setswitchinterval(interval)


def test_what_a_load_left_is_passed_over_until_memory_is_given_back() -> None:
    loaded = Cycle()
    gone = weakref.ref(loaded)
    interpreter.calm_down()
    del loaded
    gc.collect()
    assert gone() is not None
    interpreter.look_at_all()
    gc.collect()
    assert gone() is None


def test_cycles_made_while_an_engine_runs_are_still_found() -> None:
    interpreter.calm_down()
    gone = weakref.ref(Cycle())
    gc.collect()
    assert gone() is None
