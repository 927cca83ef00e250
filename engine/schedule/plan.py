"""What one step computes, said in plain data."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.engine.request import Request


@dataclass(frozen=True, slots=True)
class RowWork:
    """One request's part of a step: tokens [begin, begin + count); `samples` if the next token is chosen after them.

    `epoch` is the request's when the step was planned: a result is taken only while it still is (a request that was
    preempted or ended meanwhile does not notice).
    """

    request: Request
    begin: int
    count: int
    samples: bool
    epoch: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Rows of one flat batch; the first `num_decode_rows` have one token each."""

    rows: tuple[RowWork, ...]
    num_decode_rows: int

    @property
    def num_tokens(self) -> int:
        return sum(row.count for row in self.rows)
