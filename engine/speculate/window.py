"""How many tokens are worth guessing for a request, from how often guesses were right and what checking them costs."""

from __future__ import annotations

from dataclasses import dataclass

MEMORY = 0.85  # weight of the past in the average of acceptance, a step
FIRST_ACCEPTANCE = 0.6
GAIN = 1.03  # a window must promise so much to be used
FIRST_SLEEP, LONGEST_SLEEP = 24, 384  # tokens of plain decoding before guessing is tried again; doubles while it fails
PROBES = 3  # windows tried after a sleep before it is judged


def expected_tokens(acceptance: float, window: int) -> float:
    """Mean tokens of a step that checks `window` guesses, each right with probability `acceptance` if those before it
    were (Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", 2023, equation 1)."""
    if acceptance >= 1:
        return window + 1.0
    return (1 - acceptance ** (window + 1)) / (1 - acceptance)


@dataclass(slots=True)
class Window:
    """One request's record."""

    acceptance: float = FIRST_ACCEPTANCE
    asleep_until: int = 0  # a length of the request's text
    sleep: int = FIRST_SLEEP
    probes: int = PROBES

    def size(self, longest: int, length: int, cost: float) -> int:
        """Guesses for the next step of a text of `length` tokens, 0 to `longest`; `cost`: of one more token in a step,
        as a share of a plain step."""
        if length < self.asleep_until:
            return 0
        sizes = range(1, longest + 1)
        best = max(sizes, key=lambda size: self._gain(size, cost), default=0)
        pays = best > 0 and self._gain(best, cost) >= GAIN
        if pays and self.probes <= 0:
            self.sleep = FIRST_SLEEP
            return best
        if best and self.probes > 0:
            return max(best, min(2, longest))
        self.asleep_until = length + self.sleep
        self.sleep = min(LONGEST_SLEEP, 2 * self.sleep)
        self.probes = PROBES
        return 0

    @property
    def is_trusted(self) -> bool:
        """Whether guesses have paid lately, so that several checks may follow each other unseen."""
        return self.probes <= 0

    def observe(self, guessed: int, right: int) -> None:
        """A step checked `guessed` tokens, of which the first `right` were what the model says."""
        if not guessed:
            return
        checked = min(guessed, right + 1)
        share = right / checked
        self.acceptance = MEMORY * self.acceptance + (1 - MEMORY) * share
        self.probes -= 1

    def _gain(self, size: int, cost: float) -> float:
        return expected_tokens(self.acceptance, size) / (1 + cost * size)
