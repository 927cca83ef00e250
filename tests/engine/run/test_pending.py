"""What becomes of a step's results."""

from __future__ import annotations

import torch

from octavo.engine.request import Request, SamplingParams
from octavo.engine.run.pending import PendingCheck
from octavo.engine.run.step import NOT_FINITE
from octavo.engine.schedule.plan import RowWork, StepPlan
from octavo.engine.transfer import Download


def test_a_check_takes_tokens_up_to_the_first_wrong_guess_or_broken_score() -> None:
    works, drafts = [], [(4, 5), (6, 9), (7, 8), (1,)]
    for row, draft in enumerate(drafts):
        request = Request(f"r{row}", (1, 2, 3), SamplingParams(), 0.0)
        request.row = row
        works.append(RowWork(request, 2, 1 + len(draft), True, 1, draft=draft))
    drawn = torch.tensor([4, 5, 6, 6, 0, 1, 7, NOT_FINITE, 3, NOT_FINITE, 2])
    accepted: dict[int, tuple[int, ...]] = {}
    downloads = Download([drawn, None, None, None, None])
    result = PendingCheck(StepPlan(tuple(works), 4), downloads, {}, accepted.update).wait()
    assert result.tokens == ((4, 5, 6), (6, 0), (7,), ())
    assert result.finite == (True, True, False, False)
    assert accepted == {0: (4, 5, 6), 1: (6, 0), 2: (7,)}
