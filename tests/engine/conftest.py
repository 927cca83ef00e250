"""A fake device for engine tests: pages that remember which token was written where, and a next token that is a
hash of what was read back. A wrong page, a lost write or a stale read changes the text or raises at once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))

from fake_model import next_token

from octavo.engine.attention.base import CacheGroup, Plane
from octavo.engine.core import EngineCore
from octavo.engine.memory import NoCache, PagePool, RadixTree, SlotCache
from octavo.engine.request import Delta, Event, Finished, Request, SamplingParams
from octavo.engine.run.step import StepResult
from octavo.engine.schedule import RowWork, Scheduler, StepBudget, StepPlan, make_policy
from octavo.engine.speculate import Speculator


def greedy(prompt: list[int], count: int) -> list[int]:
    """What the fake model says after a prompt, alone."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class _Done:
    def __init__(self, result: StepResult) -> None:
        self._result = result

    def done(self) -> bool:
        return True

    def wait(self) -> StepResult:
        return self._result


def _results(tokens: list[list[int]], finite: list[bool]) -> _Done:
    none: tuple[tuple[()], ...] = ((),) * len(tokens)
    return _Done(StepResult(tuple(map(tuple, tokens)), tuple(finite), none, none))


class FakeRunner:
    """Executes plans on pages of plain numbers. `broken` says whose scores are NaN now.

    Like a device it knows the tokens of steps whose results nobody took yet, by the epoch of a row's stay, and closes a
    row at its limit or an end token.
    """

    def __init__(
        self,
        groups: tuple[CacheGroup, ...],
        page_size: int,
        run_ahead: int = 0,
        max_repeats: int = 1,
        max_checks: int = 1,
    ) -> None:
        self.groups, self.page_size = groups, page_size
        self.run_ahead, self.max_repeats, self.max_checks = run_ahead, max_repeats, max_checks
        self.slots: list[dict[int, tuple[int, int]]] = [{} for _ in groups]  # physical slot -> (token, position)
        self.broken: Callable[[Request], bool] = lambda request: False
        self.computed: list[tuple[str, int, int]] = []  # (request id, begin, count) of every row
        self.steps: list[StepPlan] = []
        self._texts: dict[int, list[int]] = {}
        self._closed: set[int] = set()

    def launch(self, plan: StepPlan) -> _Done:
        self.steps.append(plan)
        rows = {work.request.row for work in plan.rows}
        assert len(rows) == len(plan.rows), "two requests share a row"
        tokens: list[list[int]] = [[] for _ in plan.rows]
        finite = [True] * len(plan.rows)
        if plan.num_guesses:
            for _ in range(plan.repeats):
                self._check(plan, tokens, finite)
            return _results(tokens, finite)
        for turn in range(plan.repeats):
            for work in plan.rows:
                if turn < work.repeats and not self._is_closed(work):
                    self._write(work.request, self._text(work), work.begin + turn, work.count)
            for index, work in enumerate(plan.rows):
                if turn >= work.repeats or self._is_closed(work):
                    continue
                text, end = self._text(work), work.begin + turn + work.certain
                self._read(work.request, text, work.begin + turn, work.begin + turn + work.count)
                self.computed.append((work.request.id, work.begin + turn, work.count))
                if self.broken(work.request):
                    finite[index] = False
                    self._closed.add(work.epoch)
                elif work.samples:
                    assert len(text) == end, f"{work.request.id} samples at {end} with {len(text)} tokens"
                    self._say(work, text, tokens[index])
        return _results(tokens, finite)

    def _check(self, plan: StepPlan, tokens: list[list[int]], finite: list[bool]) -> None:
        """Checks every row's guesses once, from where the check before ended."""
        checks = []
        for index, work in enumerate(plan.rows):
            text = self._text(work)
            if self._is_closed(work) or len(text) >= work.request.limit:
                continue
            at = len(text) - 1 - work.begin
            guesses = (*work.draft, *work.beyond)[at : at + len(work.draft)]
            guesses = guesses[: work.request.limit - len(text) - 1]
            self._write(work.request, [*text, *guesses], len(text) - 1, 1 + len(guesses))
            checks.append((index, work, text, guesses))
        for index, work, text, guesses in checks:
            self._read(work.request, [*text, *guesses], len(text) - 1, len(text) + len(guesses))
            self.computed.append((work.request.id, len(text) - 1, 1 + len(guesses)))
            if self.broken(work.request):
                finite[index] = False
                self._closed.add(work.epoch)
                continue
            for guess in (*guesses, None):
                self._say(work, text, tokens[index])
                if text[-1] != guess or self._is_closed(work):
                    break

    def _say(self, work: RowWork, text: list[int], said: list[int]) -> None:
        text.append(next_token(text))
        said.append(text[-1])
        if text[-1] in work.request.end_ids:
            self._closed.add(work.epoch)

    def can_continue(self, plan: StepPlan) -> bool:
        return plan is self.steps[-1] and self.max_checks > 1

    def prepare_next(self) -> bool:
        return False

    def _text(self, work: RowWork) -> list[int]:
        return self._texts.setdefault(work.epoch, list(work.request.tokens))

    def _is_closed(self, work: RowWork) -> bool:
        return work.epoch in self._closed

    def _slot(self, request: Request, group: int, position: int) -> int:
        page = request.pages[group][position // self.page_size]
        assert page != 0, f"{request.id} needs position {position}, which was given back"
        return page * self.page_size + position % self.page_size

    def _write(self, request: Request, text: list[int], begin: int, count: int) -> None:
        for group in range(len(self.groups)):
            for position in range(begin, begin + count):
                self.slots[group][self._slot(request, group, position)] = (text[position], position)

    def _read(self, request: Request, text: list[int], begin: int, end: int) -> None:
        for index, group in enumerate(self.groups):
            first = 0 if group.window is None else max(0, begin - group.window + 1)
            for position in range(first, end):
                held = self.slots[index].get(self._slot(request, index, position))
                assert held == (text[position], position), f"{request.id} reads {held} at {position}"


@dataclass
class Harness:
    """A core on the fake device, with what it emitted."""

    core: EngineCore
    runner: FakeRunner
    context_length: int
    now: float = 0.0
    tick: float = 1.0
    events: dict[str, list[Event]] = field(default_factory=dict)

    def submit(
        self, request_id: str, prompt: list[int], max_tokens: int, end_ids: frozenset[int] = frozenset()
    ) -> None:
        params = SamplingParams(max_tokens=max_tokens)
        request = Request(request_id, tuple(prompt), params, self.now)
        request.limit = min(len(prompt) + max_tokens, self.context_length)
        self.events[request_id] = []
        self.core.submit(request, end_ids, None)

    def tokens(self, request_id: str) -> list[int]:
        return [t for e in self.events[request_id] if isinstance(e, Delta) for t in e.token_ids]

    def finished(self, request_id: str) -> Finished | None:
        last = self.events[request_id][-1] if self.events[request_id] else None
        return last if isinstance(last, Finished) else None

    def step(self) -> bool:
        self.now += self.tick
        return self.core.step()

    def run(self, steps: int = 10_000) -> None:
        for _ in range(steps):
            if not self.core.has_work:
                return
            self.step()
        raise AssertionError("the requests did not end")


@pytest.fixture
def harness() -> Callable[..., Harness]:
    """Makes a Harness; arguments as below."""

    def make(
        *,
        pages: int = 64,
        page_size: int = 4,
        windows: tuple[int | None, ...] = (None,),
        cache: str = "tree",
        max_running: int = 8,
        chunk: int = 16,
        policy: str = "fcfs",
        context_length: int = 128,
        run_ahead: int = 0,
        max_repeats: int = 1,
        max_checks: int = 1,
        tick: float = 1.0,
        speculator: Speculator | None = None,
    ) -> Harness:
        if cache == "slots":
            page_size, windows = context_length, (None,) * len(windows)
        plane = (Plane("k", 1, 1), Plane("v", 1, 1))
        groups = tuple(CacheGroup(f"g{i}", (i,), plane, window) for i, window in enumerate(windows))
        pools = [PagePool(pages + 1) for _ in groups]
        prefix = {
            "tree": lambda: RadixTree(pools, page_size, windows),
            "slots": lambda: SlotCache(pools, page_size),
            "none": lambda: NoCache(pools, page_size),
        }[cache]()
        scheduler = Scheduler(
            groups,
            pools,
            prefix,
            make_policy(policy),
            StepBudget(chunk, 0.05, adaptive=False),
            max_running,
            prune_windows=cache != "slots",
            hold_back=cache == "tree",
        )
        runner = FakeRunner(groups, page_size, run_ahead, max_repeats, max_checks)
        made: list[Harness] = []
        core = EngineCore(
            scheduler,
            runner,
            lambda request_id, event: made[0].events[request_id].append(event),
            speculator=speculator,
            clock=lambda: made[0].now,
        )
        made.append(Harness(core, runner, context_length, tick=tick))
        return made[0]

    return make


@pytest.fixture
def fake_greedy() -> Callable[[list[int], int], list[int]]:
    return greedy
