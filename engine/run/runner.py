"""Runs planned steps on one device: lays the batch out, runs the model, samples, and hands the results back."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.engine.attention.base import AttentionBackend, AttentionStep
from octavo.engine.memory.kv_cache import KVCache
from octavo.engine.model.base import CausalModel
from octavo.engine.request import SamplingParams, TokenLogprob
from octavo.engine.run.graphs import DecodeGraphs
from octavo.engine.run.step import PageTables, StepInputs, StepResult, make_inputs
from octavo.engine.sample.sampler import Sampled, Sampler
from octavo.engine.sample.scoring import score_tokens
from octavo.engine.schedule.plan import RowWork, StepPlan

log = logging.getLogger(__name__)

SCORE_SLICE = 256  # prompt positions scored at once: 256 x 128k float32 scores are 128 MiB


class ModelRunner:
    """The device's side of the engine. `launch` starts a step, the returned handle's `wait` gives its results."""

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
    ) -> None:
        self.model, self.cache, self.backend = model, cache, backend
        pages = -(-context_length // cache.page_size)
        self._tables = PageTables(len(cache.groups), max_running, pages)
        self._sampler = Sampler(model.vocab_size, max_running, model.device, valid_vocab, fused=graphs)
        self._errors: dict[int, str] = {}  # plan rows of the step being launched that failed alone
        self._joined: list[int | None] = [None] * max_running  # the epoch whose parameters a row of the sampler holds
        usable = graphs and model.capturable and backend.capturable and model.device.type == "cuda"
        self._graphs = DecodeGraphs(model, backend, cache, max_running, context_length) if usable else None

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> PendingStep:
        """Starts a step. The scheduler's state must not change until its result was taken."""
        inputs = make_inputs(plan, self._tables, self.cache.page_size, self.model.device)
        sampling = [index for index, work in enumerate(plan.rows) if work.samples]
        scoring = [index for index, work in enumerate(plan.rows) if work.request.params.prompt_logprobs is not None]
        if self._graphs is not None and plan.num_decode_rows == len(sampling) == len(plan.rows) and not scoring:
            logits = self._graphs.run(inputs)
            if logits is not None:
                return PendingStep(plan, sampling, self._sample(plan, sampling, logits), None, {}, self._take_errors())
        hidden = self._forward(inputs)
        last = inputs.layout.q_start[1:].long() - 1
        finite = None
        if len(sampling) < len(plan.rows):
            finite = torch.isfinite(hidden[last].float().sum(-1))
        scores = {index: self._score_prompt(plan.rows[index], inputs, index, hidden) for index in scoring}
        sampled = None
        if sampling:
            if len(sampling) == len(plan.rows):
                picked = hidden if plan.num_decode_rows == len(plan.rows) else hidden[last]
            else:
                picked = hidden[last[torch.tensor(sampling, device=last.device)]]
            sampled = self._sample(plan, sampling, self.model.logits(picked))
        return PendingStep(plan, sampling, sampled, finite, scores, self._take_errors())

    def _forward(self, inputs: StepInputs) -> Tensor:
        plan = self.backend.plan(inputs.layout, self.cache.groups)
        step = AttentionStep(self.backend, plan, self.cache.layers)
        return self.model.forward(inputs.token_ids, inputs.positions, step)

    def _sample(self, plan: StepPlan, sampling: Sequence[int], logits: Tensor) -> Sampled:
        works = [plan.rows[index] for index in sampling]
        rows: list[int] = []
        for index, work in zip(sampling, works, strict=True):
            request = work.request
            assert request.row is not None
            if self._joined[request.row] != work.epoch:
                self._join(index, work, request.row)
            rows.append(request.row)
        rows_dev = torch.tensor(rows, device=logits.device)
        positions = torch.tensor([work.begin + work.count for work in works], device=logits.device)
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

    def _score_prompt(self, work: RowWork, inputs: StepInputs, index: int, hidden: Tensor) -> list[_Scores]:
        """Log probabilities of the prompt tokens that follow this step's positions, in slices."""
        request = work.request
        count = min(work.begin + work.count, request.num_prompt - 1) - work.begin
        top = request.params.prompt_logprobs or 0
        begin = sum(inputs.layout.q_lens[:index])
        slices = []
        for offset in range(0, count, SCORE_SLICE):
            size = min(SCORE_SLICE, count - offset)
            first = work.begin + offset + 1
            ids = torch.tensor(request.tokens[first : first + size], device=hidden.device)
            logits = self.model.logits(hidden[begin + offset : begin + offset + size])
            slices.append(_Scores(ids, *score_tokens(logits, ids, top)))
        return slices


@dataclass(frozen=True, slots=True)
class _Scores:
    ids: Tensor
    logprobs: Tensor
    top_ids: Tensor
    top_logprobs: Tensor


@dataclass(frozen=True, slots=True)
class PendingStep:
    """A step under way on the device."""

    plan: StepPlan
    sampling: list[int]  # plan rows that sample
    sampled: Sampled | None
    finite_hidden: Tensor | None  # bool [rows]
    scores: dict[int, list[_Scores]]
    errors: dict[int, str]

    def wait(self) -> StepResult:
        """Blocks until the results are on the host."""
        count = len(self.plan.rows)
        tokens: list[int | None] = [None] * count
        logprobs: list[TokenLogprob | None] = [None] * count
        finite = [True] * count if self.finite_hidden is None else self.finite_hidden.tolist()
        if self.sampled is not None:
            ids, good = self.sampled.ids.tolist(), self.sampled.finite.tolist()
            for place, index in enumerate(self.sampling):
                tokens[index] = ids[place]
                finite[index] = finite[index] and good[place]
            self._fill_logprobs(ids, logprobs)
        for index in self.errors:
            finite[index] = False
        scored = [
            tuple(entry for part in self.scores.get(index, ()) for entry in _entries(part)) for index in range(count)
        ]
        return StepResult(tuple(tokens), tuple(finite), tuple(logprobs), tuple(scored), self.errors)

    def _fill_logprobs(self, ids: list[int], logprobs: list[TokenLogprob | None]) -> None:
        sampled = self.sampled
        if sampled is None or sampled.logprobs is None:
            return
        own = sampled.logprobs.tolist()
        tops = sampled.top_ids.tolist() if sampled.top_ids is not None else None
        top_values = sampled.top_logprobs.tolist() if sampled.top_logprobs is not None else None
        for place, index in enumerate(self.sampling):
            wanted = self.plan.rows[index].request.params.logprobs
            if wanted is None:
                continue
            pairs: tuple[tuple[int, float], ...] = ()
            if wanted and tops is not None and top_values is not None:
                pairs = tuple(zip(tops[place][:wanted], top_values[place][:wanted], strict=True))
            logprobs[index] = TokenLogprob(ids[place], own[place], pairs)


def _entries(part: _Scores) -> list[TokenLogprob]:
    ids, own = part.ids.tolist(), part.logprobs.tolist()
    tops, values = part.top_ids.tolist(), part.top_logprobs.tolist()
    return [TokenLogprob(ids[i], own[i], tuple(zip(tops[i], values[i], strict=True))) for i in range(len(ids))]
