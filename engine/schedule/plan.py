"""What one step computes, said in plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from octavo.engine.request import Request


class PlanAgain(Exception):
    """The runner cannot run this plan as it is, and has changed what it says of itself: make another."""


class RowWork(NamedTuple):  # made for every row of every step: a tuple is made three times faster than a data class
    """One request's part of a step: tokens [begin, begin + count); `samples` if the next token is chosen after them.

    `draft`: the last so many of its tokens are guesses that the step checks, sampling after the token before them and
    after each. `beyond`: guesses behind those, for a step that checks several times before anybody looks, each time as
    many as `draft` has from where the time before ended; a step may also check once and leave them. In a step that goes
    on from one under way, `begin` is where the text ended when it was planned, and guesses follow that. A repeated
    decode step goes on for up to `repeats` tokens. `epoch` is the request's when the step was planned: a result is
    taken only while it still is (a request that was preempted or ended does not notice).
    """

    request: Request
    begin: int
    count: int  # type: ignore[assignment]  # tuples count too; nobody asks these to
    samples: bool
    epoch: int
    repeats: int = 1
    draft: tuple[int, ...] = ()
    beyond: tuple[int, ...] = ()
    open_ended: bool = False  # how many tokens come of it is not known before

    @property
    def certain(self) -> int:
        """Tokens of `count` that are no guesses."""
        return self.count - len(self.draft)

    def placed(self, length: int) -> RowWork:
        """The same work of a text that had so many tokens when it began: what it checked is among the later guesses."""
        behind = length - 1 - self.begin
        if not self.open_ended or behind == 0:
            return self
        guesses = (*self.draft, *self.beyond)[behind:]
        draft, beyond = guesses[: len(self.draft)], guesses[len(self.draft) :]
        return self._replace(begin=length - 1, count=1 + len(draft), draft=draft, beyond=beyond)

    @property
    def row(self) -> int:
        """The request's row in the runner's tables."""
        if self.request.row is None:
            raise RuntimeError(f"request {self.request.id} is planned without a row")
        return self.request.row


class Guesses(NamedTuple):
    """Tokens that a request may say next, of which a step checks `window` at a time."""

    tokens: tuple[int, ...]
    window: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Rows of one flat batch; the first `num_decode_rows` have one token each. A step of decode rows alone, or of rows
    with guesses, may be run `repeats` times in a row, each time on the tokens of the time before. One that `continues`
    has the rows of the step with guesses before it and begins where that ends, whose results nobody has seen yet."""

    rows: tuple[RowWork, ...]
    num_decode_rows: int
    repeats: int = 1
    continues: bool = False

    @property
    def num_tokens(self) -> int:
        return self.num_decode_rows + sum(row.count for row in self.rows[self.num_decode_rows :])

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of rows that read their prompt."""
        return sum(row.count for row in self.rows[self.num_decode_rows :] if row.certain > 1)

    @property
    def num_guesses(self) -> int:
        return sum(len(row.draft) for row in self.rows[self.num_decode_rows :])


def count_checks(work: RowWork, tokens: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """How a row's tokens came about: of every check (tokens before it, guesses checked, guesses right)."""
    guesses, window, begin = (*work.draft, *work.beyond), len(work.draft), 0
    while begin < len(tokens):
        checked = guesses[begin : begin + window]
        right = next(
            (at for at, pair in enumerate(zip(checked, tokens[begin:], strict=False)) if pair[0] != pair[1]), None
        )
        if right is None:
            right = min(len(checked), len(tokens) - begin - 1)
        yield begin, len(checked), right
        begin += right + 1
