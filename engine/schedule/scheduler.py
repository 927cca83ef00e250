"""Which requests run in a step, and with which pages. Knows tokens and pages, nothing of tensors.

There are no phases: every running request catches up from `num_computed` to its last token by as much as the budget
allows, decodes first. Chunked prefill, a prefix hit and a resumed preemption are all that one rule.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from octavo.engine.attention.base import TRASH_PAGE, CacheGroup
from octavo.engine.memory.kv_cache import pages_of_one_chat
from octavo.engine.memory.pool import PagePool
from octavo.engine.memory.prefix import PrefixCache
from octavo.engine.request import NOT_RUNNING, Request, RequestStatus
from octavo.engine.schedule.budget import StepBudget
from octavo.engine.schedule.plan import Guesses, RowWork, StepPlan
from octavo.engine.schedule.policy import Policy


class Scheduler:
    """Owns the queue, the running requests, their rows and their pages.

    `hold_back`: a waiting request whose next pages are just being computed by a running one waits for them.
    """

    def __init__(
        self,
        groups: Sequence[CacheGroup],
        pools: Sequence[PagePool],
        prefix: PrefixCache,
        policy: Policy,
        budget: StepBudget,
        max_running: int,
        *,
        prune_windows: bool = True,
        hold_back: bool = True,
    ) -> None:
        self.groups = tuple(groups)
        self.pools = tuple(pools)
        self.prefix = prefix
        self.budget = budget
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # by arrival: the last one is preempted first
        self.num_preemptions = 0
        self._page_size = prefix.page_size
        self._policy = policy
        self._prune = prune_windows and any(group.window is not None for group in self.groups)
        self._hold_back = hold_back
        self._free_rows = list(range(max_running - 1, -1, -1))
        self._last_epoch = NOT_RUNNING
        self.stalled = False  # the last plan left a row out because no one may be preempted while steps are under way
        self._may_preempt = True

    # -- the queue ----------------------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Puts a request at the end of the queue."""
        self.waiting.append(request)

    def find(self, request_id: str) -> Request | None:
        """The waiting or running request of that id."""
        return next((r for r in (*self.running, *self.waiting) if r.id == request_id), None)

    def remove(self, request: Request, *, keep_pages: bool) -> None:
        """Ends a request, wherever it is; its pages are free or cached when this returns.

        `keep_pages` False: nothing it computed may be used again (its scores were not finite).
        """
        if request in self.running:
            self._leave(request, keep_pages=keep_pages)
        else:
            self.waiting.remove(request)
        request.status = RequestStatus.FINISHED

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    # -- planning -----------------------------------------------------------------------------------------------------

    def schedule(
        self,
        now_s: float,
        *,
        may_preempt: bool = True,
        max_repeats: int = 1,
        guesses: Mapping[str, Guesses] | None = None,
        behind: StepPlan | None = None,
    ) -> StepPlan | None:
        """Plans the next step, or None if nothing can run.

        While steps are under way no one can be preempted: then `may_preempt` is False, and a plan that would have to
        says so by `stalled`. `guesses` are to be checked, by request id, up to `max_repeats` times in a row; what they
        need is never taken from others, and until the step's results are in only one that goes on from it may be
        planned: then `behind` is the step under way, and None is the answer if its rows are no longer those that run.
        """
        self.stalled = False
        self._may_preempt = may_preempt
        if behind is not None:
            return self._continuing(behind, guesses or {}, max_repeats)
        if not (self.waiting and self._free_rows) and (guesses or max_repeats > 1):
            plan = self._checking(guesses, max_repeats) if guesses else self._repeated(max_repeats)
            if plan is not None:
                return plan
        rows: list[RowWork] = []
        planned: set[str] = set()
        for request in list(self.running):  # decodes: one token each
            if request.num_unplanned == 1 and request.status is RequestStatus.RUNNING and not _is_done(request):
                self._plan_row(request, 1, rows, planned)
        left = self.budget.chunk(len(rows))
        for request in list(self.running):  # prompts under way
            if left and request.num_unplanned > 1 and request.status is RequestStatus.RUNNING:
                left -= self._plan_row(request, min(left, request.num_unplanned), rows, planned)
        if left and self.waiting:
            self._admit(left, rows, planned, now_s)
        # A preemption for a later row may have taken an earlier one out again.
        rows = [row for row in rows if row.request.status is RequestStatus.RUNNING]
        if not rows:
            return None
        rows.sort(key=lambda row: row.count != 1)
        decodes = sum(row.count == 1 for row in rows)
        return StepPlan(tuple(rows), decodes)

    def _repeated(self, max_repeats: int) -> StepPlan | None:
        """The usual step, also while others wait for a row: every running request decodes, several times in a row as
        far as its limit goes. None, and no request is changed, if one of them does something else or there are not
        enough pages for all."""
        size = self._page_size
        rows: list[RowWork] = []
        growing: list[tuple[Request, int]] = []  # to so many pages
        for request in self.running:
            begin, length, limit = request.num_planned, request.len_planned, request.limit
            if length >= limit and length > len(request.prompt_ids):  # as in _is_done
                continue
            if length != begin + 1 or length >= limit:
                return None
            count = min(max_repeats, limit - length)
            rows.append(RowWork(request, begin, 1, True, request.epoch, count))
            pages = -(-(begin + count) // size)
            if min(map(len, request.pages)) < pages:
                growing.append((request, pages))
        if not rows:
            return None
        if not self._reserve_pages(growing):
            return None
        for work in rows:
            work.request.num_planned = work.begin + work.repeats
            work.request.len_planned = work.begin + work.repeats + 1
        return StepPlan(tuple(rows), len(rows), max(work.repeats for work in rows))

    def _checking(self, guesses: Mapping[str, Guesses], max_checks: int) -> StepPlan | None:
        """The step of requests that all decode, some with guesses, checked up to so many times in a row. None, and no
        request is changed, if one of them does something else or there are not enough pages for all."""
        works = []
        for request in self.running:
            if _is_done(request):
                continue
            begin = request.num_planned
            if request.len_planned != begin + 1 or request.len_planned >= request.limit:
                return None
            tokens, window = guesses.get(request.id, Guesses((), 0))
            draft = tokens[:window]
            work = RowWork(request, begin, 1 + len(draft), True, request.epoch, draft=draft, open_ended=True)
            works.append(work._replace(beyond=tokens[window:]))
        if not works:
            return None
        # what follows no guess is not worth a check
        checks = min(max_checks, max(1 - (-len(work.beyond) // work.count) for work in works))
        if not self._reserve_for_checks(works, checks):
            checks = 1
            if not self._reserve_for_checks(works, checks):
                return None
        for work in works:
            work.request.num_planned = work.begin + 1
            work.request.len_planned = work.begin + 2
        works.sort(key=lambda work: work.count != 1)
        return StepPlan(tuple(works), sum(work.count == 1 for work in works), checks)

    def _continuing(self, behind: StepPlan, guesses: Mapping[str, Guesses], checks: int) -> StepPlan | None:
        """The step with guesses that begins where one under way ends."""
        epochs = {work.request.id: work.epoch for work in behind.rows}
        if {request.id: request.epoch for request in self.running} != epochs:
            return None
        works = []
        for index, before in enumerate(behind.rows):
            request, found = before.request, guesses.get(before.request.id)
            tokens, window = ((), 0) if found is None or index < behind.num_decode_rows else found
            draft, beyond = tokens[:window], tokens[window:]
            begin = len(request.tokens) - 1
            works.append(before._replace(begin=begin, count=1 + len(draft), draft=draft, beyond=beyond))
        longest = max(max(work.count, before.count) for work, before in zip(works, behind.rows, strict=True))
        if not any(work.draft for work in works) or not self._reserve_for_checks(
            [work._replace(count=longest) for work in works], behind.repeats + checks
        ):
            return None
        return StepPlan(tuple(works), behind.num_decode_rows, checks, continues=True)

    def _reserve_for_checks(self, works: Sequence[RowWork], checks: int) -> bool:
        """Gives rows the pages for all that so many checks could write."""
        size = self._page_size
        ends = [min(work.begin + checks * work.count, work.request.limit) for work in works]
        return self._reserve_pages([(work.request, -(-end // size)) for work, end in zip(works, ends, strict=True)])

    def forget_planned(self) -> None:
        """No step is under way: what was planned and not run is to be planned again."""
        for request in self.running:
            request.forget_planned()

    def _plan_row(self, request: Request, count: int, rows: list[RowWork], planned: set[str]) -> int:
        begin = request.num_planned
        end = begin + count
        if not self._reserve(request, end, planned):
            return 0
        samples = end == request.len_planned and end < request.limit
        rows.append(RowWork(request, begin, count, samples, request.epoch))
        planned.add(request.id)
        request.num_planned = end
        if samples:
            request.len_planned = end + 1
        return count

    def _admit(self, left: int, rows: list[RowWork], planned: set[str], now_s: float) -> None:
        for request in self._policy.order(self.waiting, self.prefix, now_s):
            if not left or not self._free_rows:
                return
            if self._hold_back and self._computed_elsewhere(request):
                continue
            if not self._enter(request):
                if self._policy.strict:
                    return
                continue
            left -= self._plan_row(request, min(left, request.num_unplanned), rows, planned)

    def _enter(self, request: Request) -> bool:
        """Takes the cached beginning and a row, if there is room for all the request's tokens; else changes nothing."""
        scores_prompt = request.params.prompt_logprobs is not None
        match = None if scores_prompt else self.prefix.match(request.tokens)
        request.pages = match.pages if match else [[] for _ in self.groups]
        request.num_computed = match.num_tokens if match else 0
        request.prefix_handle = match.handle if match else None
        if self.running and not self._has_room(request):
            self.prefix.finish(request.prefix_handle, request.tokens, request.pages, 0)
            request.pages, request.num_computed, request.prefix_handle = [], 0, None
            return False
        if request.status is RequestStatus.WAITING:
            request.cached_tokens = request.num_computed
        self.waiting.remove(request)
        request.row = self._free_rows.pop()
        self._last_epoch += 1
        request.epoch = self._last_epoch
        request.num_in_tree = request.num_computed
        request.forget_planned()
        request.status = RequestStatus.RUNNING
        self.running.append(request)
        self.running.sort(key=lambda r: r.arrival_s)
        return True

    def _has_room(self, request: Request) -> bool:
        """Whether the request's present tokens and one more page for every running chat fit."""
        for index, group in enumerate(self.groups):
            whole = pages_of_one_chat(group, len(request.tokens) + 1, self._page_size, self.budget.max_chunk)
            held = sum(page != TRASH_PAGE for page in request.pages[index])
            spare = len(self.running) if self._page_size < len(request.tokens) else 0
            if self._available(index) < whole - held + spare:
                return False
        return True

    def _computed_elsewhere(self, request: Request) -> bool:
        """Whether a running request is about to compute pages that this one could share."""
        size, tokens = self._page_size, request.tokens
        found: int | None = None
        for other in self.running:
            if other.num_computed >= len(other.tokens) - 1 or other.tokens[:size] != tokens[:size]:
                continue
            same = common_prefix(other.tokens, tokens, min(len(other.tokens), len(tokens) - 1)) // size * size
            if same > other.num_computed:
                found = self.prefix.peek(tokens) if found is None else found
                if same > found:
                    return True
        return False

    # -- pages --------------------------------------------------------------------------------------------------------

    def _available(self, group: int) -> int:
        return self.pools[group].num_free + self.prefix.num_evictable(group)

    def _reserve(self, request: Request, num_tokens: int, planned: set[str]) -> bool:
        """Gives the request pages for its first `num_tokens`, evicting and preempting others if it must.

        False if that is not possible now; the request itself may have been preempted then.
        """
        pages = -(-num_tokens // self._page_size)
        for index, pool in enumerate(self.pools):
            missing = pages - len(request.pages[index])
            while missing > 0 and pool.num_free < missing:
                if self.prefix.evict(index, missing - pool.num_free):
                    continue
                if not self._may_preempt:
                    self.stalled = True
                    return False
                victim = next((r for r in reversed(self.running) if r.id not in planned), None)
                if victim is None or victim is request:
                    if len(self.running) > 1:
                        self._preempt(request)
                    return False
                self._preempt(victim)
            if missing > 0:
                request.pages[index].extend(pool.allocate(missing))
                request.pages_changed += 1
        return True

    def reserve_unused(self, request: Request, num_tokens: int) -> bool:
        """Gives the request pages for its first `num_tokens` if no running chat must give up its own for that."""
        pages = -(-num_tokens // self._page_size)
        missing = [max(0, pages - len(held)) for held in request.pages]
        if not self._free_up(missing):
            return False
        for held, pool, count in zip(request.pages, self.pools, missing, strict=True):
            if count > 0:
                held.extend(pool.allocate(count))
                request.pages_changed += 1
        return True

    def _reserve_pages(self, wanted: Sequence[tuple[Request, int]]) -> bool:
        """Gives every request so many pages, or none of them any, as `reserve_unused` does."""
        groups = range(len(self.pools))
        if not self._free_up([sum(max(0, count - len(r.pages[group])) for r, count in wanted) for group in groups]):
            return False
        for request, count in wanted:
            self.reserve_unused(request, count * self._page_size)
        return True

    def _free_up(self, counts: Sequence[int]) -> bool:
        """Frees so many pages of each group, taking what is cached of chats that have ended; False if there are not
        enough."""
        for index, (pool, count) in enumerate(zip(self.pools, counts, strict=True)):
            missing = count - pool.num_free
            if missing > 0 and self.prefix.evict(index, missing) < missing:
                return False
        return True

    def _preempt(self, request: Request) -> None:
        """Takes a request's pages; it waits at the front and computes again what is no longer cached by then."""
        self._leave(request, keep_pages=True)
        request.status = RequestStatus.PREEMPTED
        request.num_computed = 0
        request.preemptions += 1
        self.num_preemptions += 1
        self.waiting.appendleft(request)

    def _leave(self, request: Request, *, keep_pages: bool) -> None:
        self.prefix.finish(
            request.prefix_handle, request.tokens, request.pages, request.num_computed if keep_pages else 0
        )
        self.running.remove(request)
        assert request.row is not None
        self._free_rows.append(request.row)
        request.row, request.pages, request.prefix_handle = None, [], None
        request.epoch = NOT_RUNNING
        request.forget_planned()

    # -- results ------------------------------------------------------------------------------------------------------

    def commit(self, work: RowWork, token_ids: Sequence[int]) -> None:
        """Takes a row's result: its tokens' keys and values are certain now, and `token_ids` follow them (those of a
        repeated or checking step but for the last have keys and values too)."""
        request = work.request
        request.num_computed = work.begin + work.certain + max(0, len(token_ids) - 1)
        request.tokens.extend(token_ids)
        if work.open_ended:
            request.forget_planned()
        size = self._page_size
        if request.num_computed // size > request.num_in_tree // size:
            before = request.prefix_handle
            request.prefix_handle = self.prefix.extend(before, request.tokens, request.pages, request.num_computed)
            request.num_in_tree = request.num_computed
            if request.prefix_handle is not before and self.prefix.adopt(request.prefix_handle, before, request.pages):
                request.pages_changed += 1
                request.pages_replaced += 1
        if self._prune:
            self._release_passed(request)

    def _release_passed(self, request: Request) -> None:
        """Gives back pages that lie behind the window of every token still to come."""
        for index, group in enumerate(self.groups):
            if group.window is None:
                continue
            passed = max(0, request.num_computed - group.window + 1) // self._page_size
            table = request.pages[index]
            for page in range(passed - 1, -1, -1):
                if table[page] == TRASH_PAGE:
                    break
                self.pools[index].release([table[page]])
                table[page] = TRASH_PAGE
                request.pages_changed += 1
                request.pages_replaced += 1

    def check_integrity(self) -> None:
        """Raises RuntimeError unless every page is accounted for: free, cached, or held by running requests."""
        self.prefix.check_integrity()
        for index, pool in enumerate(self.pools):
            held = chain.from_iterable(request.pages[index] for request in self.running)
            expected = Counter(chain(held, self.prefix.cached_pages(index)))
            expected.pop(TRASH_PAGE, None)
            pool.check_integrity(expected)
        if len({r.row for r in self.running}) != len(self.running):
            raise RuntimeError("two running requests share a row")


def _is_done(request: Request) -> bool:
    """Whether the steps under way bring the request to its limit."""
    return request.len_planned > request.num_prompt and request.len_planned >= request.limit


def common_prefix(a: Sequence[int], b: Sequence[int], limit: int) -> int:
    """How many of the first `limit` items agree; compares slices, since they usually agree for long."""
    low, high = 0, limit
    if a[:limit] == b[:limit]:
        return limit
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


def count_pages(requests: Iterable[Request], group: int) -> tuple[int, int]:
    """(pages held by any of the requests, pages held by more than one of them)."""
    held = Counter(chain.from_iterable(request.pages[group] for request in requests))
    held.pop(TRASH_PAGE, None)
    return len(held), len(held) - list(held.values()).count(1)
