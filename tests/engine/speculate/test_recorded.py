"""Guesses from a recording."""

from __future__ import annotations

from octavo.engine.request import Request, SamplingParams
from octavo.engine.speculate.recorded import RecordedDrafter

REPLY = list(range(10, 1010))


def right(acceptance: float) -> float:
    """Share of windows of one guess that are right."""
    drafter, hits = RecordedDrafter({(1, 2): REPLY}, acceptance), 0
    for place in range(800):
        request = Request("a", (1, 2), SamplingParams(), 0.0, tokens=[1, 2, *REPLY[:place]])
        hits += drafter.propose([(request, 1)])["a"] == (REPLY[place],)
    return hits / 800


def test_guesses_are_right_as_often_as_wanted() -> None:
    assert right(1.0) == 1.0
    assert right(0.0) == 0.0
    assert abs(right(0.8) - 0.8) < 0.05


def test_guesses_end_with_the_reply_and_are_wrong_one_by_one() -> None:
    request = Request("a", (1, 2), SamplingParams(), 0.0, tokens=[1, 2, *REPLY[:-2]])
    assert RecordedDrafter({(1, 2): REPLY}, 1.0).propose([(request, 5)]) == {"a": tuple(REPLY[-2:])}
    assert RecordedDrafter({}, 1.0).propose([(request, 5)]) == {}
    begun = Request("a", (1, 2), SamplingParams(), 0.0)
    wrong = RecordedDrafter({(1, 2): REPLY}, 0.0).propose([(begun, 3)])["a"]
    assert all(guess != said for guess, said in zip(wrong, REPLY[:3], strict=True))
    assert RecordedDrafter({(1, 2): REPLY}, 1.0).beyond(begun, 3, 4) == tuple(REPLY[3:7])
