"""Drawing several guesses in a row."""

from __future__ import annotations

from octavo.engine.request import Request, SamplingParams
from octavo.engine.run.step import StepResult
from octavo.engine.schedule.plan import PlanAgain, StepPlan
from octavo.engine.speculate.guesser import Guesser


class _Done:
    def __init__(self, result: StepResult) -> None:
        self._result = result

    def wait(self) -> StepResult:
        return self._result


class CountingRunner:
    """Says how long the text is. Like a real one it promises repeats until it finds no memory for them."""

    max_repeats = 4

    def __init__(self) -> None:
        self.refused = 0

    def launch(self, plan: StepPlan) -> _Done:
        if plan.repeats > 1:
            self.max_repeats = 1
            self.refused += 1
            raise PlanAgain
        count = len(plan.rows)
        tokens = tuple((len(work.request.tokens),) for work in plan.rows)
        return _Done(StepResult(tokens, (True,) * count, ((),) * count, ((),) * count))

    def forget_newest(self, row: int) -> None: ...


def test_guesses_are_drawn_one_by_one_where_steps_cannot_be_repeated() -> None:
    runner = CountingRunner()
    request = Request("a", (7, 7, 7), SamplingParams(), 0.0)
    request.row, request.pages = 0, [[1]]
    assert Guesser(runner).draw([request], {"a": 3}) == {"a": (3, 4, 5)}
    assert runner.refused == 1
