"""What guessing from the text is worth on recorded texts, where a step with n guesses takes 1 + fixed + each * n.

texts.json holds token ids: what a 135M model says to the benchmark's prompts and to four more, and a licence.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from octavo.engine.request import Request, SamplingParams
from octavo.engine.speculate import NgramDrafter, Speculator

TEXTS = json.loads((Path(__file__).parent / "texts.json").read_text(encoding="utf-8"))
FRESH = ["fresh-text", "bicycle", "letter", "sorting", "curie", "licence"]
COSTS = [(0.03, 0.02), (0.03, 0.06), (0.03, 0.1), (0.1, 0.05), (0.3, 0.05)]


@dataclass
class Run:
    """One text said with guesses."""

    steps: int = 0
    seconds: float = 0.0
    tokens: int = 0
    guessed: int = 0

    @property
    def speed(self) -> float:
        """Against plain decoding."""
        return self.tokens / self.seconds

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / self.steps


def say(prompt: Sequence[int], reply: Sequence[int], fixed: float, each: float, noise: float = 0.0) -> Run:
    """Lets a speculator guess along a known reply, as the engine would. `noise`: mean of what a measured step is
    disturbed by, exponentially distributed."""
    speculator, rng, run = Speculator(NgramDrafter(), 5), random.Random(3), Run()
    request = Request("a", tuple(prompt), SamplingParams(), 0.0, epoch=1)
    request.tokens.append(reply[0])
    request.limit = len(prompt) + len(reply) + 1
    while (done := request.num_generated) < len(reply):
        guesses = speculator.propose([request]).get("a")
        guess = guesses.tokens if guesses else ()
        right = 0
        while right < len(guess) and done + right < len(reply) and guess[right] == reply[done + right]:
            right += 1
        seconds = 1 + fixed + each * len(guess) if guess else 1.0
        speculator.observe_step(seconds + (noise and rng.expovariate(1 / noise)), 1, len(guess))
        if guess:
            speculator.observe(request, len(guess), right)
        new = reply[done : done + right + 1]
        request.tokens.extend(new)
        run.steps, run.seconds = run.steps + 1, run.seconds + seconds
        run.tokens, run.guessed = run.tokens + len(new), run.guessed + len(guess)
    return run


def recorded(name: str) -> tuple[list[int], list[int]]:
    return TEXTS[name]["prompt"], TEXTS[name]["reply"]


def broken_repeats(length: int, tokens: int = 1000) -> tuple[list[int], list[int]]:
    """Stretches of a long prompt, each followed by a token that was never there."""
    rng, new = random.Random(length), count(1_000_000)
    prompt, reply = [rng.randrange(40_000) for _ in range(2000)], []
    while len(reply) < tokens:
        begin = rng.randrange(len(prompt) - length)
        reply += [*prompt[begin : begin + length], next(new)]
    return prompt, reply


@pytest.mark.parametrize(("fixed", "each"), COSTS)
def test_copies_are_as_fast_as_the_width_of_a_step_allows(fixed: float, each: float) -> None:
    for name in ("copy-code", "copy-text"):
        run = say(*recorded(name), fixed, each)
        assert run.tokens_per_step > 4, name
        assert run.speed > 2.5, name


@pytest.mark.parametrize(("fixed", "each"), COSTS)
def test_fresh_text_and_prose_are_never_slowed_down(fixed: float, each: float) -> None:
    for name in FRESH:
        assert say(*recorded(name), fixed, each).speed > 0.975, name


@pytest.mark.parametrize(("fixed", "each"), COSTS)
@pytest.mark.parametrize("vocabulary", [16, 64, 49_000])
def test_random_text_is_not_slowed_down(vocabulary: int, fixed: float, each: float) -> None:
    rng = random.Random(vocabulary)
    prompt, reply = ([rng.randrange(vocabulary) for _ in range(length)] for length in (200, 1000))
    assert say(prompt, reply, fixed, each).speed > 0.98


@pytest.mark.parametrize(("fixed", "each"), COSTS)
@pytest.mark.parametrize("length", [2, 3, 4, 6, 9, 12, 20])
def test_repeats_that_always_break_cost_next_to_nothing(length: int, fixed: float, each: float) -> None:
    assert say(*broken_repeats(length), fixed, each).speed > 0.98


@pytest.mark.parametrize("noise", [0.3, 1.0])
def test_a_busy_machine_does_not_mislead_it(noise: float) -> None:
    for name in FRESH:
        assert say(*recorded(name), 0.1, 0.05, noise).speed > 0.97, name
    for length in (2, 4, 9):
        assert say(*broken_repeats(length), 0.1, 0.05, noise).speed > 0.97
    assert say(*recorded("copy-code"), 0.1, 0.05, noise).speed > 2.5


def test_dear_guesses_are_left_alone_and_cheap_ones_are_not() -> None:
    dear, cheap = (say(*recorded("licence"), 0.0, each) for each in (0.9, 0.01))
    assert dear.speed > 0.97
    assert cheap.speed > 1.1
    assert dear.guessed < cheap.guessed / 5


def test_a_quotation_is_found_again_after_any_length_of_text_that_broke_every_promise() -> None:
    prompt, reply = broken_repeats(2, 3000)
    quoted = prompt[700:860]
    alone, whole = say(prompt, reply, 0.1, 0.05), say(prompt, reply + quoted, 0.1, 0.05)
    assert whole.steps - alone.steps < len(quoted) / 2.5


def test_a_copy_goes_on_past_replaced_words() -> None:
    source = recorded("licence")[1][:600]
    copy = [token if place % 12 else 1_000_000 + place for place, token in enumerate(source, 1)]
    assert say(source, copy, 0.1, 0.05).speed > 3
