"""What becomes of a step's results."""

from __future__ import annotations

import torch

from octavo.engine.request import Request, SamplingParams
from octavo.engine.run.pending import PendingCheck, PendingChecks
from octavo.engine.run.step import NOT_FINITE
from octavo.engine.schedule.plan import RowWork, StepPlan
from octavo.engine.transfer import Download, Stopwatch

CLOSED = -1


def test_a_check_takes_tokens_up_to_the_first_wrong_guess_or_broken_score() -> None:
    works, drafts = [], [(4, 5), (6, 9), (7, 8), (1,)]
    for row, draft in enumerate(drafts):
        request = Request(f"r{row}", (1, 2, 3), SamplingParams(), 0.0)
        request.row = row
        works.append(RowWork(request, 2, 1 + len(draft), True, 1, draft=draft))
    drawn = torch.tensor([4, 5, 6, 6, 0, 1, 7, NOT_FINITE, 3, NOT_FINITE, 2])
    accepted: dict[int, tuple[int, ...]] = {}
    downloads = Download([drawn, drawn != NOT_FINITE, None, None, None])
    result = PendingCheck(StepPlan(tuple(works), 4), downloads, {}, accepted.update).wait()
    assert result.tokens == ((4, 5, 6), (6, 0), (7,), ())
    assert result.finite == (True, True, False, False)
    assert accepted == {0: (4, 5, 6), 1: (6, 0), 2: (7,)}


def test_checks_in_a_row_give_a_rows_tokens_in_their_order() -> None:
    works = []
    for row in range(3):
        request = Request(f"r{row}", (1, 2, 3), SamplingParams(), 0.0)
        request.row = row
        works.append(RowWork(request, 2, 3, True, 1, draft=(4, 5), open_ended=True))
    outputs = torch.tensor(
        [
            [[4, 5, 6], [4, CLOSED, CLOSED], [7, NOT_FINITE, CLOSED]],
            [[8, CLOSED, CLOSED], [CLOSED, CLOSED, CLOSED], [CLOSED, CLOSED, CLOSED]],
        ]
    )
    plan = StepPlan(tuple(works), 0, 2)
    result = PendingChecks(plan, Download([outputs]), {}, Stopwatch(torch.device("cpu"))).wait()
    assert result.tokens == ((4, 5, 6, 8), (4,), (7,))
    assert result.finite == (True, True, False)
    result = PendingChecks(plan, Download([outputs]), {0: "broken"}, Stopwatch(torch.device("cpu"))).wait()
    assert result.tokens[0] == ()
    assert result.finite[0] is False


def test_work_that_went_on_from_a_step_under_way_is_placed_where_that_ended() -> None:
    request = Request("a", (1, 2, 3), SamplingParams(), 0.0)
    work = RowWork(request, 2, 3, True, 1, draft=(4, 5), beyond=(6, 7, 8), open_ended=True)
    assert work.placed(3) is work
    later = work.placed(5)
    assert (later.begin, later.certain, later.draft, later.beyond) == (4, 1, (6, 7), (8,))
    assert work.placed(20).draft == ()
