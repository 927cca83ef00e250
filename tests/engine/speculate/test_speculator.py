"""Who guesses, when, and what is learned from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from octavo.engine.request import Request, SamplingParams
from octavo.engine.speculate import Drafter, NgramDrafter, Speculator

COPIED = list(range(100, 160))


def request(name: str, prompt: list[int], reply: list[int]) -> Request:
    made = Request(name, tuple(prompt), SamplingParams(), 0.0, tokens=[*prompt, *reply], epoch=1)
    made.limit = 1000
    return made


class Silent(Drafter):
    """Promises much and says nothing."""

    name = "silent"
    asked = 0

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> Mapping[str, tuple[int, ...]]:
        self.asked += 1
        return {}


def test_a_text_that_follows_itself_is_guessed_and_another_is_not() -> None:
    speculator = Speculator(NgramDrafter(), 5)
    copy, fresh = request("copy", COPIED, COPIED[:20]), request("fresh", COPIED, [1, 2, 3])
    assert speculator.propose([copy, fresh]) == {"copy": (tuple(COPIED[20:25]), 5)}


def test_a_guess_leaves_room_for_the_steps_own_token() -> None:
    speculator, copy = Speculator(NgramDrafter(), 5), request("copy", COPIED, COPIED[:20])
    copy.limit = len(copy.tokens) + 3
    assert speculator.propose([copy])["copy"].tokens == (120, 121)
    copy.limit = len(copy.tokens) + 1
    assert not speculator.propose([copy])


def test_nothing_is_guessed_before_a_reply_has_begun_or_among_many_chats() -> None:
    speculator, copy = Speculator(NgramDrafter(), 5, most_rows=2), request("copy", COPIED, COPIED[:20])
    assert not speculator.propose([request("prompt", [*COPIED, *COPIED], [])])
    crowd = [copy, *(request(f"r{index}", COPIED, [1]) for index in range(2))]
    assert not speculator.propose(crowd)
    assert not speculator.is_promising(crowd)


def test_it_promises_what_it_then_proposes() -> None:
    speculator = Speculator(NgramDrafter(), 5)
    for reply in ([1], COPIED[:1], COPIED[:2], COPIED[:3], COPIED[:20], [*COPIED[:20], 1, 2]):
        asked = request("a", COPIED, reply)
        asked.epoch = 1 + len(reply)
        assert speculator.is_promising([asked]) == bool(speculator.propose([asked]))


def test_the_more_tokens_are_under_way_the_longer_must_a_copy_be_to_be_waited_for() -> None:
    def promising(copied: int, under_way: int) -> bool:
        asked = request("a", COPIED, COPIED[:copied])
        asked.len_planned += under_way
        return Speculator(NgramDrafter(), 5).is_promising([asked])

    assert promising(3, 1)
    assert not promising(3, 12)
    assert promising(20, 12)


def test_promises_that_are_broken_are_soon_not_made_any_more() -> None:
    drafter = Silent()
    speculator, asked = Speculator(drafter, 5), request("a", COPIED, [1])
    for _ in range(50):
        if speculator.is_promising([asked]):
            assert not speculator.propose([asked])
        asked.tokens.append(1)
        asked.len_planned += 1
    assert 2 < drafter.asked < 15


def test_what_failed_is_not_guessed_again_at_once_and_is_forgotten_with_its_request() -> None:
    speculator, asked = Speculator(NgramDrafter(), 5), request("a", COPIED, COPIED[:4])
    tries = 0
    while guesses := speculator.propose([asked]):
        speculator.observe(asked, guesses["a"].window, 0)
        tries += 1
    assert 0 < tries < 10
    speculator.forget(asked)
    assert speculator.propose([asked])


def test_a_copy_that_has_paid_is_guessed_for_several_checks() -> None:
    speculator, copy = Speculator(NgramDrafter(), 5), request("copy", list(range(300)), list(range(20)))
    seen = []
    for _ in range(6):
        guesses = speculator.propose([copy], checks=8)["copy"]
        assert guesses.window == 5
        assert guesses.tokens == tuple(range(len(copy.tokens) - 300, len(copy.tokens) - 300 + len(guesses.tokens)))
        seen.append(len(guesses.tokens))
        speculator.observe(copy, 5, 5)
        copy.tokens += [*guesses.tokens[:5], guesses.tokens[4] + 1]
    assert seen[0] == 5
    assert seen[-1] > 20


def test_a_forced_window_is_always_full() -> None:
    speculator, asked = Speculator(NgramDrafter(), 5, always=True), request("a", COPIED, COPIED[:2])
    for _ in range(20):
        guesses = speculator.propose([asked], checks=2)["a"]
        assert guesses.window == 5
        assert len(guesses.tokens) == 11
        speculator.observe(asked, 5, 0)


def test_steps_are_timed_from_result_to_result_so_that_the_hosts_work_between_them_counts(
    harness: Callable[..., Any],
) -> None:
    class Timed(Speculator):
        def observe_step(self, seconds: float, rows: int, guessed: int) -> None:
            timed.append(seconds)

    timed: list[float] = []
    h = harness(tick=1.0, speculator=Timed(NgramDrafter(), 5))  # the clock stands during a step
    h.submit("a", [1, 2, 3], 10)
    h.run()
    assert timed == [1.0] * 9
