"""How many tokens are worth guessing for a request: what guesses are likely to bring, and what they may cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

from octavo.engine.speculate.cost import Cost

GAIN = 1.03  # a window must promise so much to be used
SURE = 0.99  # no guess is taken to be likelier
MEMORY = 0.97  # weight of the past after every token, so that what failed is tried again some 30 tokens later
DOUBT = 1.5  # right guesses that the record must outweigh
ALLOWANCE = 0.6  # plain steps that a request may lose before anything was won: five guesses, or a few single ones
SHARE = 0.015  # of a plain step, by which the allowance is filled up again with every token
WON = 3.0  # plain steps of what was won that may be risked again; no text is a copy for ever
COPY_WINS = 4.0  # plain steps, if a copy goes on for longer than the steps under way


def expected_tokens(chance: float, window: int) -> float:
    """Mean tokens of a step that checks `window` guesses, each right with probability `chance` if those before it were
    (Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", 2023, equation 1)."""
    if chance >= 1:
        return window + 1.0
    return (1 - chance ** (window + 1)) / (1 - chance)


@dataclass(slots=True)
class Window:
    """One request's record.

    Guesses are paid for from an allowance and what they win is paid in. So whatever a text is like, it loses no more
    than ALLOWANCE plain steps and SHARE of the others, as far as the cost is known.
    """

    right: float = 0.0  # guesses that were right, faded
    promised: float = 0.0  # how many should have been by their chances, faded
    allowance: float = ALLOWANCE
    length: int = 0  # tokens of the text when these were true

    def size(self, longest: int, length: int, chance: float, cost: Cost) -> int:
        """Guesses for the next step of a text of `length` tokens, 0 to `longest`. `chance`: how likely the drafter
        takes the first to be right, which is corrected by how such promises were kept."""
        chance, allowance = self._corrected(length, chance)
        best, most = 0, GAIN
        for size in range(1, longest + 1):
            gain = expected_tokens(chance, size) / (1 + cost.of(size))
            if gain >= most and cost.of(size) <= allowance:
                best, most = size, gain
        return best

    def is_worth_waiting(self, under_way: int, length: int, chance: float, cost: Cost) -> bool:
        """Whether nothing more should be launched before `under_way` tokens are known, so that the one after them can
        be guessed: if they differ, the device stood still for nothing."""
        chance, _ = self._corrected(length, chance)
        return chance**under_way * COPY_WINS >= cost.fixed

    def checks(self, size: int, most: int, length: int, chance: float, cost: Cost) -> int:
        """How often in a row, 1 to `most`, so many guesses may be checked before anybody looks: as long as they are
        rather right than not, and what was won pays for it should they all be wrong."""
        chance, allowance = self._corrected(length, chance)
        likely = 1 + math.log(0.5) / math.log(chance) / (size + 1)
        paid = (allowance - ALLOWANCE) / cost.of(size)
        return max(1, int(min(most, likely, paid)))

    def observe(self, length: int, chance: float, guessed: int, right: int, cost: Cost) -> None:
        """A step checked `guessed` tokens, of which the first `right` were what the model says. `guessed` 0: the step
        waited for a guess that then was none."""
        before_right, promised, allowance = self._at(length)
        self.length = length
        self.right = before_right + right
        self.promised = promised + chance * max(1, min(guessed, right + 1))
        self.allowance = min(WON, allowance + right - cost.of(guessed))

    def _corrected(self, length: int, chance: float) -> tuple[float, float]:
        """The chance that is to be expected of a drafter's promise, and the allowance."""
        right, promised, allowance = self._at(length)
        return min(SURE, chance * (DOUBT + right) / (DOUBT + promised)), allowance

    def _at(self, length: int) -> tuple[float, float, float]:
        """The record at a later length of the text."""
        passed = max(0, length - self.length) if self.length else 0
        fade = MEMORY**passed
        refilled = min(ALLOWANCE, self.allowance + SHARE * passed)
        return self.right * fade, self.promised * fade, max(self.allowance, refilled)
