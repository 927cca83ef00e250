"""Steps under way: what was launched, and how its results become plain values once the device is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from octavo.engine.request import TokenLogprob
from octavo.engine.run.step import NOT_FINITE, StepResult
from octavo.engine.schedule.plan import StepPlan
from octavo.engine.transfer import Download, Stopwatch


class PendingStep:
    """A step under way on the device.

    `tokens` brings int64 [repeats, N], negative where there is none; `scored` for each repetition log probabilities
    float32 [N], top ids [N, K] and top log probabilities [N, K], or nothing where no row wants them. `chosen` are the
    columns of `tokens` for the sampling rows, `columns` those of `finite` for all rows, where they are not in order.
    """

    def __init__(
        self,
        plan: StepPlan,
        sampling: list[int],
        tokens: Download,
        scored: list[Download],
        errors: dict[int, str],
        finite: Download | None = None,
        prompt_scores: dict[int, list[Download]] | None = None,
        *,
        stopwatch: Stopwatch | None = None,
        columns: list[int] | None = None,
        chosen: list[int] | None = None,
    ) -> None:
        self.plan = plan
        self._sampling = sampling  # plan rows that sample
        self._tokens = tokens
        self._scored = scored
        self._errors = errors
        self._finite = finite
        self._prompt_scores = prompt_scores or {}
        self._stopwatch = stopwatch
        self._columns = columns
        self._chosen = chosen

    def done(self) -> bool:
        """Whether the results are on the host."""
        return self._tokens.done() and all(part is None or part.done() for part in (self._finite, *self._scored))

    def wait(self) -> StepResult:
        """Blocks until the results are on the host."""
        count = len(self.plan.rows)
        tokens: list[tuple[int, ...]] = [()] * count
        logprobs: list[tuple[TokenLogprob, ...]] = [()] * count
        finite = self._finite.wait()[0] if self._finite is not None else None
        good = [True] * count if finite is None else finite.tolist()
        if self._columns is not None:
            good = [good[column] for column in self._columns]
        chosen = self._tokens.wait()[0]
        if chosen is not None:
            drawn_ids = chosen.numpy()  # its calls take a third of the time of torch's
            by_row = list(map(tuple, drawn_ids.T.tolist()))
            if self._chosen is not None:
                by_row = [by_row[column] for column in self._chosen]
            whole = drawn_ids.min(initial=0) >= 0
            for index, drawn in zip(self._sampling, by_row, strict=True):
                if whole:
                    tokens[index] = drawn
                    continue
                tokens[index] = tuple([token for token in drawn if token >= 0])
                good[index] = good[index] and NOT_FINITE not in drawn
            self._fill_logprobs(tokens, logprobs)
        for index in self._errors:
            good[index], tokens[index] = False, ()
        prompts: list[tuple[TokenLogprob, ...]] = [()] * count
        for index, parts in self._prompt_scores.items():
            prompts[index] = tuple(entry for part in parts for entry in _entries(part))
        device_s = None if self._stopwatch is None else self._stopwatch.seconds(self._tokens)
        return StepResult(tuple(tokens), tuple(good), tuple(logprobs), tuple(prompts), device_s, self._errors)

    def _fill_logprobs(self, tokens: list[tuple[int, ...]], logprobs: list[tuple[TokenLogprob, ...]]) -> None:
        for turn, download in enumerate(self._scored):
            own, top_ids, top_logprobs = download.wait()
            if own is None or top_ids is None or top_logprobs is None:
                return
            values, tops, top_values = own.tolist(), top_ids.tolist(), top_logprobs.tolist()
            for place, index in enumerate(self._sampling):
                wanted = self.plan.rows[index].request.params.logprobs
                if wanted is None or turn >= len(tokens[index]):
                    continue
                pairs = tuple(zip(tops[place][:wanted], top_values[place][:wanted], strict=True))
                logprobs[index] += (TokenLogprob(tokens[index][turn], values[place], pairs),)


def _entries(part: Download) -> list[TokenLogprob]:
    ids, own, tops, values = (tensor.tolist() for tensor in part.wait() if tensor is not None)
    return [TokenLogprob(ids[i], own[i], tuple(zip(tops[i], values[i], strict=True))) for i in range(len(ids))]


class PendingCheck:
    """A step under way that checks guesses. A row's tokens are certain up to the first that was not guessed.

    `downloads`: the ids drawn after every token, whether their scores were finite, and log probabilities, top ids and
    top log probabilities or None.
    """

    def __init__(
        self,
        plan: StepPlan,
        downloads: Download,
        errors: dict[int, str],
        accept: Callable[[Mapping[int, Sequence[int]]], None],
    ) -> None:
        self.plan = plan
        self._downloads = downloads
        self._errors = errors
        self._accept = accept

    def done(self) -> bool:
        """Whether the results are on the host."""
        return self._downloads.done()

    def wait(self) -> StepResult:
        """Blocks until the results are on the host, and tells the sampler which tokens count."""
        ids, finite, own, top_ids, top_logprobs = self._downloads.wait()
        assert ids is not None
        assert finite is not None
        drawn, good = ids.tolist(), finite.tolist()
        tokens, fine, logprobs, begin = [], [], [], 0
        for index, work in enumerate(self.plan.rows):
            taken: list[int] = []
            while index not in self._errors and len(taken) < work.count and good[begin + len(taken)]:
                taken.append(drawn[begin + len(taken)])
                if len(taken) == work.count or taken[-1] != work.draft[len(taken) - 1]:
                    break
            whole = len(taken) == work.count or (bool(taken) and taken[-1] != work.draft[len(taken) - 1])
            tokens.append(tuple(taken))
            fine.append(whole)
            entries: tuple[TokenLogprob, ...] = ()
            wanted = work.request.params.logprobs
            if wanted is not None and own is not None and top_ids is not None and top_logprobs is not None:
                entries = tuple(
                    TokenLogprob(token, own[at].item(), _pairs(top_ids[at], top_logprobs[at], wanted))
                    for at, token in enumerate(taken, begin)
                )
            logprobs.append(entries)
            begin += work.count
        self._accept({work.row: row for work, row in zip(self.plan.rows, tokens, strict=True) if row})
        none: tuple[tuple[TokenLogprob, ...], ...] = ((),) * len(tokens)
        return StepResult(tuple(tokens), tuple(fine), tuple(logprobs), none, errors=self._errors)


class PendingChecks:
    """A step under way that checks guesses several times in a row, the device itself taking what is certain.

    `outputs` brings int64 [checks, rows, places], negative where there is no token.
    """

    def __init__(self, plan: StepPlan, outputs: Download, errors: dict[int, str], stopwatch: Stopwatch) -> None:
        self.plan = plan
        self._outputs = outputs
        self._errors = errors
        self._stopwatch = stopwatch

    def done(self) -> bool:
        """Whether the results are on the host."""
        return self._outputs.done()

    def wait(self) -> StepResult:
        """Blocks until the results are on the host."""
        (outputs,) = self._outputs.wait()
        assert outputs is not None
        by_row = outputs.transpose(0, 1).flatten(1).tolist()
        none: tuple[tuple[TokenLogprob, ...], ...] = ((),) * len(by_row)
        tokens = tuple(
            () if index in self._errors else tuple([token for token in drawn if token >= 0])
            for index, drawn in enumerate(by_row)
        )
        finite = tuple(index not in self._errors and NOT_FINITE not in drawn for index, drawn in enumerate(by_row))
        return StepResult(tokens, finite, none, none, self._stopwatch.seconds(self._outputs), self._errors)


def _pairs(ids: Tensor, logprobs: Tensor, count: int) -> tuple[tuple[int, float], ...]:
    return tuple(zip(ids[:count].tolist(), logprobs[:count].tolist(), strict=True))
