"""Drawing several tokens in a row from a model: what drafters with a model share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from octavo.engine.request import Request
from octavo.engine.run.step import StepResult
from octavo.engine.schedule.plan import PlanAgain, RowWork, StepPlan


class _Pending(Protocol):
    def wait(self) -> StepResult: ...


class StepRunner(Protocol):
    """The part of a ModelRunner that a guesser needs."""

    max_repeats: int

    def launch(self, plan: StepPlan) -> _Pending: ...

    def forget_newest(self, row: int) -> None: ...


class Guesser:
    """Runs steps of a guessing model and waits for each; nothing of it runs ahead."""

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner

    def read(self, request: Request, count: int) -> None:
        """Computes the next `count` tokens of a request, as far as they are known."""
        work = RowWork(request, request.num_computed, count, count == 1, request.epoch)
        self._runner.forget_newest(work.row)
        self._runner.launch(StepPlan((work,), int(count == 1))).wait()

    def draw(self, requests: Sequence[Request], counts: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """So many tokens for each request, all of whose text but the last token has been read. Leaves out what comes
        after scores that are not numbers."""
        drawn: dict[str, tuple[int, ...]] = {request.id: () for request in requests}
        texts = {request.id: replace(request, tokens=list(request.tokens)) for request in requests}
        for text in texts.values():
            assert text.row is not None
            self._runner.forget_newest(text.row)
        open_ids = set(drawn)
        while open_ids:
            left = {name: counts[name] - len(drawn[name]) for name in open_ids}
            repeats = min(self._runner.max_repeats, max(left.values()))
            works = []
            for name in sorted(open_ids):
                text = texts[name]
                works.append(RowWork(text, len(text.tokens) - 1, 1, True, text.epoch, min(repeats, left[name])))
            try:
                result = self._runner.launch(StepPlan(tuple(works), len(works), repeats)).wait()
            except PlanAgain:  # there was no memory to repeat a step; the runner asks for no repeats any more
                continue
            for work, tokens, finite in zip(works, result.tokens, result.finite, strict=True):
                name = work.request.id
                drawn[name] += tokens
                work.request.tokens.extend(tokens)
                if not finite or not tokens or len(drawn[name]) >= counts[name]:
                    open_ids.discard(name)
        return drawn
