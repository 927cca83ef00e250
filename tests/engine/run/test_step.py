"""How a plan becomes tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from octavo.engine.attention.base import CacheGroup, Plane
from octavo.engine.memory import KVCache
from octavo.engine.request import Request, SamplingParams
from octavo.engine.run.runner import ModelRunner
from octavo.engine.run.step import UNKNOWN, PageTables, make_inputs
from octavo.engine.schedule.plan import RowWork, StepPlan

CPU = torch.device("cpu")


def request(name: str, row: int, tokens: list[int], pages: list[int], epoch: int) -> Request:
    made = Request(name, tuple(tokens), SamplingParams(), 0.0)
    made.row, made.pages, made.epoch, made.pages_changed = row, [pages], epoch, 1
    return made


def test_rows_positions_and_slots_are_laid_out_decodes_first() -> None:
    a = request("a", 3, [10, 11, 12, 13, 14], [7, 9], 1)
    b = request("b", 0, [20, 21, 22, 23, 24, 25], [2, 4], 2)
    plan = StepPlan((RowWork(a, 4, 1, True, 1), RowWork(b, 2, 4, True, 2)), 1)
    inputs = make_inputs(plan, PageTables(1, 4, 8), 4, CPU)
    assert inputs.token_ids.tolist() == [14, 22, 23, 24, 25]
    assert inputs.positions.tolist() == [4, 2, 3, 4, 5]
    assert inputs.layout.q_start.tolist() == [0, 1, 5]
    assert inputs.layout.kv_len.tolist() == [5, 6]
    assert inputs.layout.tables[0].tolist() == [[7, 9], [2, 4]]
    assert inputs.layout.write_slots[0].tolist() == [9 * 4, 2 * 4 + 2, 2 * 4 + 3, 4 * 4, 4 * 4 + 1]


def test_a_step_of_single_tokens_is_laid_out_in_every_group_and_marks_what_the_device_still_draws() -> None:
    a = request("a", 3, [10, 11, 12, 13, 14], [7, 9], 1)
    b = request("b", 0, [20, 21, 22], [2], 2)
    a.pages, b.pages = [[7, 9], [1, 3]], [[2], [6]]
    plan = StepPlan((RowWork(a, 4, 1, True, 1), RowWork(b, 3, 1, True, 2)), 2)
    inputs = make_inputs(plan, PageTables(2, 4, 8), 4, CPU)
    assert inputs.token_ids.tolist() == [14, UNKNOWN]
    assert inputs.positions.tolist() == [4, 3]
    layout = inputs.layout
    assert (layout.num_rows, layout.num_tokens, layout.num_decode_rows, layout.max_q, layout.max_kv) == (2, 2, 2, 1, 5)
    assert (layout.q_lens, layout.kv_lens) == ((1, 1), (5, 4))
    assert (layout.q_start.dtype, layout.q_start.tolist()) == (torch.int32, [0, 1, 2])
    assert (layout.kv_len.dtype, layout.kv_len.tolist()) == (torch.int32, [5, 4])
    assert [table.tolist() for table in layout.tables] == [[[7, 9], [2, 0]], [[1, 3], [6, 0]]]
    assert [(slots.dtype, slots.tolist()) for slots in layout.write_slots] == [
        (torch.int64, [9 * 4, 2 * 4 + 3]),
        (torch.int64, [3 * 4, 6 * 4 + 3]),
    ]


def test_a_row_that_changed_hands_gets_the_new_requests_table() -> None:
    tables = PageTables(1, 2, 4)
    first = request("first", 1, [1, 2, 3], [5], 1)
    make_inputs(StepPlan((RowWork(first, 2, 1, True, 1),), 1), tables, 4, CPU)
    second = request("second", 1, [1, 2, 3], [6], 2)
    inputs = make_inputs(StepPlan((RowWork(second, 2, 1, True, 2),), 1), tables, 4, CPU)
    assert inputs.layout.tables[0].tolist() == [[6]]


def test_a_table_follows_its_request_as_pages_come_and_go() -> None:
    tables = PageTables(1, 2, 6)
    chat = request("chat", 1, [1, 2, 3], [5], 1)
    plan = StepPlan((RowWork(chat, 2, 1, True, 1),), 1)
    tables.update(plan)
    chat.pages[0] += [7, 8]
    chat.pages_changed += 1
    tables.update(plan)
    assert tables.tables[0][1].tolist() == [5, 7, 8, 0, 0, 0]
    chat.pages[0][0] = 0
    chat.pages[0].append(9)
    chat.pages_changed += 2
    chat.pages_replaced += 1
    tables.update(plan)
    assert tables.tables[0][1].tolist() == [0, 7, 8, 9, 0, 0]


def test_no_two_stays_in_a_row_share_an_epoch(harness: Callable[..., Any]) -> None:
    h = harness(pages=20, page_size=4, max_running=2, context_length=72)
    for index in range(5):
        h.submit(f"r{index}", [index, 1, 2], 30)
    h.run()
    assert h.core.scheduler.num_preemptions == 0
    seen = {(work.request.id, work.epoch) for plan in h.runner.steps for work in plan.rows}
    assert len({epoch for _, epoch in seen}) == len(seen) == 5


class _Numb:
    """A model whose hidden states and scores are all equal."""

    vocab_size, device, capturable = 7, CPU, False

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, step: Any) -> torch.Tensor:
        return torch.zeros(len(token_ids), 2)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(hidden), 7)


class _NoAttention:
    capturable = False

    def plan(self, layout: Any, groups: Any) -> None:
        return None


def test_parameters_the_sampler_cannot_take_fail_their_request_alone() -> None:
    plane = (Plane("k", 1, 1), Plane("v", 1, 1))
    cache = KVCache((CacheGroup("g", (0,), plane),), [8], 4, torch.float32, CPU)
    runner = ModelRunner(_Numb(), cache, _NoAttention(), max_running=4, context_length=16)  # type: ignore[arg-type]
    good = request("good", 0, [1, 2], [1], 1)
    bad = request("bad", 1, [1, 2], [2], 2)
    bad.params = SamplingParams(top_k=2**70)
    plan = StepPlan((RowWork(good, 1, 1, True, 1), RowWork(bad, 1, 1, True, 2)), 2)
    result = runner.launch(plan).wait()
    assert result.finite == (True, False)
    assert "cannot be used" in result.errors[1]
    good.tokens.append(3)
    assert runner.launch(StepPlan((RowWork(good, 2, 1, True, 1),), 1)).wait().finite == (True,)
