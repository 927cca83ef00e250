"""Runs planned steps on one device: lays the batch out, runs the model, samples, and hands the results back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from octavo.engine.attention.base import AttentionBackend, AttentionStep
from octavo.engine.memory.kv_cache import KVCache
from octavo.engine.model.base import CausalModel
from octavo.engine.request import SamplingParams
from octavo.engine.run.checks import MAX_CHECKS, CheckGraphs
from octavo.engine.run.graphs import MAX_REPEATS, DecodeGraphs, GraphParts, GraphPool
from octavo.engine.run.mixed import Bucket, MixedGraphs
from octavo.engine.run.pending import PendingCheck, PendingChecks, PendingStep
from octavo.engine.run.step import NOT_FINITE, UNKNOWN, PageTables, StepInputs, make_inputs
from octavo.engine.sample.sampler import Kind, Sampled, Sampler
from octavo.engine.sample.scoring import score_tokens
from octavo.engine.schedule.plan import PlanAgain, RowWork, StepPlan
from octavo.engine.transfer import Download, Stopwatch, upload

log = logging.getLogger(__name__)

# (rows, prompt tokens, how tokens are chosen) of the graphs that nearly every chat needs, in that order
FIRST_GRAPHS: tuple[tuple[int, int, Kind], ...] = (
    (1, 0, "filter"), (0, 64, "filter"), (1, 0, "greedy"), (0, 128, "filter"), (0, 256, "filter"), (2, 0, "filter"),
    (4, 0, "filter"),
)  # fmt: skip
EVERYTHING = len(FIRST_GRAPHS) + 1  # those graphs, and steps that run without one
IDLE_WAIT_S = 0.1  # for kernels of a graph that nobody asked for yet
SCORE_SLICE = 256  # prompt positions scored at once: 256 x 128k float32 scores are 128 MiB


def first_graphs_of(plan: StepPlan) -> int:
    """How many of the first graphs there are up to one that is as large as this step; EVERYTHING if none is."""
    decodes, prompt = plan.num_decode_rows, plan.num_tokens - plan.num_decode_rows
    if bool(decodes) != bool(prompt) and not plan.num_guesses:
        for number, (rows, tokens, _) in enumerate(FIRST_GRAPHS, 1):
            if 0 < decodes <= rows or 0 < prompt <= tokens:
                return number
    return EVERYTHING


class Awaited(Protocol):
    """Kernels that are compiled elsewhere."""

    def wait(self, graphs: int, longest_s: float = ...) -> bool:
        """Returns True once all is compiled that the first so many of FIRST_GRAPHS launch, or will not be; False if
        that takes longer than `longest_s`."""

    @property
    def over(self) -> bool:
        """Whether nothing is left to wait for."""


class ModelRunner:
    """The device's side of the engine. `launch` starts a step, the returned handle's `wait` gives its results.

    On CUDA nothing here waits for the device, so several steps can be under way; they run in order on one stream. A
    page or row that was given back may be used again at once, since only later work on that stream can touch it.
    """

    def __init__(
        self,
        model: CausalModel,
        cache: KVCache,
        backend: AttentionBackend,
        *,
        max_running: int,
        context_length: int,
        valid_vocab: int | None = None,
        graphs: bool = False,
        kernels: Awaited | None = None,
        make_pool: Callable[[], GraphPool] = GraphPool,
    ) -> None:
        self.model, self.cache, self.backend = model, cache, backend
        pages = -(-context_length // cache.page_size)
        self._tables = PageTables(len(cache.groups), max_running, pages)
        self._sampler = Sampler(model.vocab_size, max_running, model.device, valid_vocab, fused=graphs)
        self._errors: dict[int, str] = {}  # plan rows of the step being launched that failed alone
        self._joined: list[int | None] = [None] * max_running  # the epoch whose parameters a row of the sampler holds
        self._fed: list[int | None] = [None] * max_running  # the epoch whose newest token the device has
        self._last_tokens = torch.zeros(max_running + 1, dtype=torch.int64, device=model.device)
        usable = graphs and model.capturable and backend.capturable and model.device.type == "cuda"
        self._graphs: DecodeGraphs | None = None
        self._mixed: MixedGraphs | None = None
        self._checks: CheckGraphs | None = None
        if usable:
            parts = GraphParts(
                model, backend, cache, self._sampler, self._last_tokens, make_pool(), max_running, context_length
            )
            self._graphs, self._mixed, self._checks = DecodeGraphs(parts), MixedGraphs(parts), CheckGraphs(parts)
        self._to_prepare = list(FIRST_GRAPHS) if usable else []
        self._kernels = kernels
        self.run_ahead = 1 if model.device.type == "cuda" else 0
        self.max_repeats = MAX_REPEATS if usable else 1
        self.max_checks = MAX_CHECKS if usable else 1

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> PendingStep | PendingCheck | PendingChecks:
        """Starts a step. Requests may end before its results are taken; their pages must not have been read by then."""
        if self._kernels is not None:
            self._has_kernels(first_graphs_of(plan))
        sampling = [index for index, work in enumerate(plan.rows) if work.samples]
        scoring = [index for index, work in enumerate(plan.rows) if work.request.params.prompt_logprobs is not None]
        if plan.num_guesses:
            return self._launch_check(plan, sampling)
        if self._graphs is not None and plan.num_decode_rows == len(sampling) == len(plan.rows) and not scoring:
            pending = self._launch_graph(plan, sampling)
            if pending is not None:
                return pending
        elif self._mixed is not None and not scoring:
            pending = self._launch_mixed(self._mixed, plan, sampling)
            if pending is not None:
                return pending
        if plan.repeats > 1:
            self.max_repeats = 1  # there was no memory to capture a graph
            raise PlanAgain
        return self._launch_eagerly(plan, sampling, scoring)

    def can_continue(self, plan: StepPlan) -> bool:
        """Whether a step may begin where this one with guesses, launched last, ends."""
        return self._checks is not None and self._checks.can_continue(plan)

    @torch.inference_mode()
    def prepare_next(self) -> bool:
        """Captures one graph that is likely to be needed or was missed; False if there is none. For idle times."""
        if self._graphs is None or self._mixed is None:
            return False
        if self._graphs.prepare_next() or self._mixed.prepare_next():
            return True
        if self._to_prepare:
            if not self._has_kernels(self.first_graphs_begun + 1, IDLE_WAIT_S):
                return True  # somebody may ask for a reply meanwhile
            rows, prompt_tokens, kind = self._to_prepare.pop(0)
            if prompt_tokens:
                self._mixed.want(Bucket(0, 1, prompt_tokens), kind)
            else:
                self._graphs.prepare(rows, kind)
            return True
        return False

    @property
    def first_graphs_begun(self) -> int:
        """How many of FIRST_GRAPHS `prepare_next` has come to."""
        return len(FIRST_GRAPHS) - len(self._to_prepare)

    def _has_kernels(self, graphs: int, longest_s: float = float("inf")) -> bool:
        """Waits for kernels that are being compiled elsewhere, which are not to be compiled here at the same time."""
        if self._kernels is None:
            return True
        ready = self._kernels.wait(graphs, longest_s)
        if self._kernels.over:
            self._kernels = None
        return ready

    def _launch_graph(self, plan: StepPlan, sampling: list[int]) -> PendingStep | None:
        assert self._graphs is not None
        rows = self._join_rows(plan, sampling)
        kind = self._sampler.kind(rows)
        self._tables.update(plan)
        self._feed(plan)
        outputs = self._graphs.launch(plan, self._tables, kind)
        if outputs is None:
            return None
        scored = []
        if kind == "any":
            for turn in range(plan.repeats):
                sampled = self._sample(rows, *outputs.scores(turn))
                outputs.choose(sampled.ids, sampled.finite)
                scored.append(_scores_of(sampled))
        return PendingStep(
            plan, sampling, Download([outputs.tokens()]), scored, self._take_errors(), stopwatch=outputs.stopwatch
        )

    def _launch_mixed(self, mixed: MixedGraphs, plan: StepPlan, sampling: list[int]) -> PendingStep | None:
        rows = self._join_rows(plan, sampling)
        kind = self._sampler.kind(rows) if rows else "greedy"
        self._tables.update(plan)
        outputs = mixed.launch(plan, self._tables, kind)
        if outputs is None:
            return None
        device, columns = self.model.device, outputs.columns
        finite = Download([outputs.finite])
        errors = self._take_errors()
        if outputs.tokens is not None:
            tokens = Download([outputs.tokens])
            self._mark_fed(plan, sampling)
            chosen = [columns[index] for index in sampling]
            return PendingStep(
                plan, sampling, tokens, [], errors, finite, stopwatch=outputs.stopwatch, columns=columns, chosen=chosen
            )
        assert outputs.logits is not None
        places = upload([columns[index] for index in sampling], torch.int64, device)
        sampled, tokens = self._choose(plan, sampling, rows, outputs.logits.index_select(0, places))
        return PendingStep(
            plan, sampling, tokens, [_scores_of(sampled)], errors, finite, stopwatch=outputs.stopwatch, columns=columns
        )

    def _choose(self, plan: StepPlan, sampling: list[int], rows: list[int], logits: Tensor) -> tuple[Sampled, Download]:
        """Samples rows of an eager or mixed step and leaves their tokens where the next step finds them."""
        positions = upload([plan.rows[i].begin + plan.rows[i].count for i in sampling], torch.int64, logits.device)
        sampled = self._sample(rows, logits, positions)
        if self.run_ahead or logits.device.type == "cuda":
            self._last_tokens.index_copy_(0, self._sampler.index(rows), sampled.ids)
            self._mark_fed(plan, sampling)
        return sampled, Download([torch.where(sampled.finite, sampled.ids, NOT_FINITE)[None]])

    def forget_newest(self, row: int) -> None:
        """The newest token of a row is to be taken from the request's text, not from what the device drew last."""
        self._fed[row] = None

    def _mark_fed(self, plan: StepPlan, sampling: list[int]) -> None:
        for index in sampling:
            self._fed[plan.rows[index].row] = plan.rows[index].epoch

    def _launch_eagerly(self, plan: StepPlan, sampling: list[int], scoring: list[int]) -> PendingStep:
        inputs = make_inputs(plan, self._tables, self.cache.page_size, self.model.device)
        device, decodes = self.model.device, plan.num_decode_rows
        if any(work.begin >= len(work.request.tokens) for work in plan.rows[:decodes]):
            known = inputs.token_ids[:decodes]
            rows_dev = upload([work.row for work in plan.rows[:decodes]], torch.int64, device)
            known.copy_(torch.where(known == UNKNOWN, self._last_tokens[rows_dev], known))
        stopwatch = Stopwatch(device)
        hidden = self.forward(inputs)
        each = len(sampling) == decodes == len(plan.rows)  # of the hidden states is the last of a row that samples
        last = None if each else inputs.layout.q_start[1:].long() - 1
        finite = None
        if len(sampling) < len(plan.rows):
            finite = torch.isfinite(hidden[last].float().sum(-1))
        scores = {index: self._score_prompt(plan.rows[index], inputs, index, hidden) for index in scoring}
        if not sampling:
            return PendingStep(
                plan, sampling, Download([None]), [], {}, Download([finite]), scores, stopwatch=stopwatch
            )
        picked = hidden if last is None else hidden[last[upload(sampling, torch.int64, device)]]
        rows = self._join_rows(plan, sampling)
        sampled, tokens = self._choose(plan, sampling, rows, self.model.logits(picked))
        errors = self._take_errors()
        return PendingStep(
            plan, sampling, tokens, [_scores_of(sampled)], errors, Download([finite]), scores, stopwatch=stopwatch
        )

    def _launch_check(self, plan: StepPlan, sampling: list[int]) -> PendingCheck | PendingChecks:
        """A step of decode rows with guesses: a token is drawn after every one of their tokens."""
        rows = self._join_rows(plan, sampling)
        self._tables.update(plan)
        checked = None
        if self._checks is not None:
            if not plan.continues:
                self._feed(plan)
            checked = self._checks.launch(plan, self._tables, self._sampler.kind(rows))
        if checked is not None and checked.outputs is not None:
            return PendingChecks(plan, Download([checked.outputs]), self._take_errors(), checked.stopwatch)
        for work in plan.rows:
            self._fed[work.row] = None  # which of the drawn tokens is the newest is known only when they are looked at
        counts = [work.count for work in plan.rows]
        if checked is not None and checked.logits is not None and checked.positions is not None:
            width = checked.positions.shape[1]
            places = [at * width + place for at, count in enumerate(counts) for place in range(count)]
            found = upload(places, torch.int64, self.model.device)
            scores, positions = checked.logits.flatten(0, 1)[found], checked.positions.flatten()[found]
        else:
            inputs = make_inputs(plan, self._tables, self.cache.page_size, self.model.device)
            scores, positions = self.model.logits(self.forward(inputs)), inputs.positions + 1
        repeated = [row for row, count in zip(rows, counts, strict=True) for _ in range(count)]
        assumed = [work.draft[:place] for work in plan.rows for place in range(work.count)]
        sampled = self._sampler.sample(scores, repeated, self._sampler.index(repeated), positions, assumed)
        downloads = Download([sampled.ids, sampled.finite, sampled.logprobs, sampled.top_ids, sampled.top_logprobs])
        return PendingCheck(plan, downloads, self._take_errors(), self._sampler.accept_all)

    def _feed(self, plan: StepPlan) -> None:
        """Gives the device the newest tokens that it did not choose itself."""
        works = [work for work in plan.rows if self._fed[work.row] != work.epoch]
        if not works:
            return
        rows = [work.row for work in works]
        tokens = [work.request.tokens[work.begin] for work in works]
        device = self.model.device
        self._last_tokens.index_copy_(0, upload(rows, torch.int64, device), upload(tokens, torch.int64, device))
        for work in works:
            self._fed[work.row] = work.epoch

    def forward(self, inputs: StepInputs) -> Tensor:
        """Hidden states [T, H] of a step that runs without a graph."""
        plan = self.backend.plan(inputs.layout, self.cache.groups)
        step = AttentionStep(self.backend, plan, self.cache.layers)
        return self.model.forward(inputs.token_ids, inputs.positions, step)

    def _join_rows(self, plan: StepPlan, sampling: Sequence[int]) -> list[int]:
        """The sampler's rows of a plan's sampling rows, each holding its request's parameters."""
        rows: list[int] = []
        for index in sampling:
            work = plan.rows[index]
            row = work.row
            if self._joined[row] != work.epoch:
                self._join(index, work, row)
            rows.append(row)
        return rows

    def _sample(self, rows: list[int], logits: Tensor, positions: Tensor) -> Sampled:
        rows_dev = self._sampler.index(rows)
        sampled = self._sampler.sample(logits, rows, rows_dev, positions)
        self._sampler.accept(rows_dev, sampled.ids, rows)
        return sampled

    def _join(self, index: int, work: RowWork, row: int) -> None:
        """Hands a request's parameters to the sampler; if it cannot take them, only this request fails."""
        request = work.request
        if self._joined[row] is not None:
            self._sampler.leave(row)
            self._joined[row] = None
        try:
            seed = request.params.seed or 0
            self._sampler.join(row, request.params, request.tokens, request.num_prompt, seed)
        except Exception as error:  # whatever a value does to the sampler, the neighbours must not feel it
            log.exception("the sampling parameters of a request cannot be used")
            self._errors[index] = f"The sampling parameters of this request cannot be used: {error}"
            self._sampler.join(row, SamplingParams(temperature=0.0), request.tokens, request.num_prompt, 0)
        self._joined[row] = work.epoch

    def _take_errors(self) -> dict[int, str]:
        errors, self._errors = self._errors, {}
        return errors

    def _score_prompt(self, work: RowWork, inputs: StepInputs, index: int, hidden: Tensor) -> list[Download]:
        """Log probabilities of the prompt tokens that follow this step's positions, in slices."""
        request = work.request
        count = min(work.begin + work.count, request.num_prompt - 1) - work.begin
        top = request.params.prompt_logprobs or 0
        begin = sum(inputs.layout.q_lens[:index])
        slices = []
        for offset in range(0, count, SCORE_SLICE):
            size = min(SCORE_SLICE, count - offset)
            first = work.begin + offset + 1
            ids = upload(request.tokens[first : first + size], torch.int64, hidden.device)
            logits = self.model.logits(hidden[begin + offset : begin + offset + size])
            slices.append(Download([ids, *score_tokens(logits, ids, top)]))
        return slices


def _scores_of(sampled: Sampled) -> Download:
    return Download([sampled.logprobs, sampled.top_ids, sampled.top_logprobs])
