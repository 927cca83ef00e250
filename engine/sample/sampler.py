"""The batched sampler: from a step's logits to one token a row, with only the work that some row asked for.

Order: logit bias, penalties, temperature, min-p, top-k, top-p, draw. Log probabilities come from the raw logits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from octavo.engine.request import SamplingParams
from octavo.engine.sample import noise
from octavo.engine.sample.adjust import Adjustments
from octavo.engine.sample.draw import Filters, draw_numpy, draw_torch
from octavo.engine.sample.scoring import score_tokens
from octavo.engine.transfer import upload

# what a batch of rows needs: the likeliest tokens; draws, perhaps with min-p; also top-k or top-p; or whatever else
# `Sampler.sample` does, which no captured step can
Kind = Literal["greedy", "draw", "filter", "any"]

GREEDY_BELOW = 1e-5  # temperatures under it overflow float32 and mean the likeliest token
KEPT_BATCHES = 64  # compositions of a batch whose indices are kept on the device; steady decoding repeats one


@dataclass(frozen=True, slots=True)
class Sampled:
    """A step's tokens, all on the device.

    `ids` int64 [N]. `finite` bool [N]: False where the logits hold NaN or +inf, or every token is banned; that row's
    id means nothing. `logprobs` float32 [N], `top_ids` int64 and `top_logprobs` float32 [N, K] are None unless a row
    asked for them; K is the most any row asked for, and the entries of rows that did not ask mean nothing.
    """

    ids: Tensor
    finite: Tensor
    logprobs: Tensor | None = None
    top_ids: Tensor | None = None
    top_logprobs: Tensor | None = None


@dataclass(frozen=True, slots=True)
class _Kernels:
    """Functions of kernels/sampling.py and kernels/sampling_bounds.py."""

    argmax: Callable[[Tensor], tuple[Tensor, Tensor]]
    draw: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
    bounds: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class _Row:
    """What the host knows of a row. `filters` is None for greedy rows, `slot` for rows that adjust no logits."""

    stream: tuple[int, int]
    filters: Filters | None
    slot: int | None
    logprobs: int | None


@dataclass(frozen=True, slots=True)
class _Batch:
    """Indices of one composition of rows, made once. `special` rows need more than the argmax of their raw logits."""

    rows: tuple[_Row, ...]
    rows_dev: Tensor
    special: tuple[int, ...]  # places in the batch
    special_dev: Tensor
    adjusted: Tensor  # places within `special`
    counted: Tensor  # the same rows' places in the batch
    counted_places: tuple[int, ...]
    slots: tuple[int, ...]  # and their slots
    slots_dev: Tensor
    drawn: tuple[int, ...]  # places within `special`
    drawn_dev: Tensor
    any_top_k: bool
    any_top_p: bool
    scored: Tensor | None  # places in the batch that want log probabilities
    top_n: int


class Sampler:
    """Samples for up to `max_rows` running requests. Never waits for the device; ids at and above `valid_vocab`
    (rows of the head that no token has) are never drawn. `fused`: on CUDA, the best token, filters and draws run as
    kernels of their own."""

    def __init__(
        self,
        vocab_size: int,
        max_rows: int,
        device: torch.device,
        valid_vocab: int | None = None,
        fused: bool = False,
    ) -> None:
        self.vocab_size = min(vocab_size, valid_vocab or vocab_size)
        self._device = torch.device(device)
        self._kernels = _sampling_kernels() if fused and self._device.type == "cuda" else None
        self._row_by_row = self._device.type == "cpu"  # there, touching few tokens is worth more than large operations
        self._rows: list[_Row | None] = [None] * max_rows
        self._batches: dict[tuple[int, ...], _Batch] = {}
        self._adjust = Adjustments(self.vocab_size, self._device)
        # temperature (0: greedy), top_p, min_p of each row, its top_k, and the words of its noise; the last row of each
        # is nobody's, for the places of a captured step that no request fills
        self._settings = torch.zeros(max_rows + 1, 3, device=self._device)
        self._top_k = torch.zeros(max_rows + 1, dtype=torch.int64, device=self._device)
        self._streams = torch.zeros(max_rows + 1, 2, dtype=torch.int64, device=self._device)

    @torch.inference_mode()
    def join(self, row: int, params: SamplingParams, tokens: Sequence[int], num_prompt: int, seed: int) -> None:
        """A request takes a row. `tokens` are its prompt and the reply so far, from which penalties are rebuilt."""
        if self._rows[row] is not None:
            self.leave(row)
        filters, temperature = None, 0.0
        if params.temperature >= GREEDY_BELOW:
            filters = Filters(params.temperature, params.top_k, params.top_p, params.min_p)
            temperature = params.temperature
        settings = (temperature, params.top_p, params.min_p)
        self._settings[row] = upload(settings, torch.float32, self._device)
        self._top_k[row] = params.top_k
        slot = self._adjust.join(params, tokens, num_prompt) if Adjustments.needed(params) else None
        words = noise.stream(seed)
        self._streams[row] = upload(words, torch.int64, self._device)
        self._rows[row] = _Row(words, filters, slot, params.logprobs)
        self._batches.clear()

    def leave(self, row: int) -> None:
        """The row's request ended or was preempted."""
        known = self._rows[row]
        if known is not None and known.slot is not None:
            self._adjust.leave(known.slot)
        self._rows[row] = None
        self._batches.clear()

    @torch.inference_mode()
    def sample(
        self,
        logits: Tensor,
        rows: Sequence[int],
        rows_dev: Tensor,
        positions: Tensor,
        assumed: Sequence[Sequence[int]] | None = None,
    ) -> Sampled:
        """One token a row from float32 logits [N, vocab_size], which are left as they are.

        `rows` and `rows_dev` int64 [N] name the rows; `positions` int64 [N] are those of the tokens to be drawn and,
        with the row's seed, all that the noise depends on. A row may be named several times, to draw at several
        positions: `assumed` then holds for each the tokens that are taken to follow the row's text before it.
        """
        batch = self._batch(rows)
        raw = logits[:, : self.vocab_size]
        best, ids = self._best(raw)
        logprobs = top_ids = top_logprobs = None
        finite = _is_finite(best)
        if batch.special:
            chosen, best = self._choose(batch, raw, best, ids, rows_dev, positions, assumed)
            if len(batch.special) == len(rows):
                ids, finite = chosen, finite & _is_finite(best)
            else:
                ids = ids.index_copy(0, batch.special_dev, chosen)
                finite = finite.index_copy(0, batch.special_dev, finite[batch.special_dev] & _is_finite(best))
        if batch.scored is not None:
            wanted = raw.index_select(0, batch.scored)
            parts = score_tokens(wanted, ids.index_select(0, batch.scored), batch.top_n)
            logprobs, top_ids, top_logprobs = (
                part.new_zeros((len(rows), *part.shape[1:])).index_copy_(0, batch.scored, part) for part in parts
            )
        return Sampled(ids, finite, logprobs, top_ids, top_logprobs)

    @torch.inference_mode()
    def accept(self, rows_dev: Tensor, ids: Tensor, rows: Sequence[int]) -> None:
        """The sampled ids int64 [N] became part of these rows' replies: counts them for the penalties."""
        batch = self._batch(rows)
        if batch.slots:
            self._adjust.count(batch.slots_dev, batch.slots, ids.index_select(0, batch.counted))

    def accept_all(self, replies: Mapping[int, Sequence[int]]) -> None:
        """Tokens that became part of some rows' replies in one step, one or several a row."""
        counted = {
            row: ids
            for row, ids in replies.items()
            if (known := self._rows[row]) is not None and known.slot is not None
        }
        for turn in range(max(map(len, counted.values()), default=0)):
            rows = [row for row, ids in counted.items() if turn < len(ids)]
            ids = upload([counted[row][turn] for row in rows], torch.int64, self._device)
            self.accept(self.index(rows), ids, rows)

    def index(self, rows: Sequence[int]) -> Tensor:
        """int64 [N] on the device, of rows that each hold a request; made once for rows that stay together."""
        return self._batch(rows).rows_dev

    def kind(self, rows: Sequence[int]) -> Kind:
        """What these rows need."""
        batch = self._batch(rows)
        if batch.slots or batch.scored is not None or self._kernels is None:
            return "any"
        if batch.any_top_k or batch.any_top_p:
            return "filter"
        return "draw" if batch.drawn else "greedy"

    def choose(self, logits: Tensor, rows_dev: Tensor, positions: Tensor, kind: Kind) -> tuple[Tensor, Tensor]:
        """(ids int64 [N], best score float32 [N]) for rows of this kind or one that needs less; not for "any".

        Of fixed shapes and without the host's knowledge of the rows, so that it may be captured into a CUDA graph.
        """
        assert self._kernels is not None
        raw = logits[:, : self.vocab_size]
        best, ids = self._kernels.argmax(raw)
        if kind == "greedy":
            return ids, best
        drawn = self._draw_fused(raw, best, rows_dev, positions, filtered=kind == "filter")
        return torch.where(self._settings[rows_dev, 0] > 0, drawn, ids), best

    def _draw_fused(self, raw: Tensor, best: Tensor, rows_dev: Tensor, positions: Tensor, *, filtered: bool) -> Tensor:
        """int64 [N]; what it says for greedy rows means nothing."""
        assert self._kernels is not None
        temperature, top_p, min_p = self._settings[rows_dev].t().contiguous().unbind()
        temperature = torch.where(temperature > 0, temperature, 1.0)
        least = min_p.clamp(min=noise.NEGLIGIBLE)
        if filtered:
            least = self._kernels.bounds(raw, best, temperature, least, self._top_k[rows_dev], top_p)
        return self._kernels.draw(raw, best, temperature, least, self._streams[rows_dev], positions)

    def _slot_of(self, row: int) -> int | None:
        known = self._rows[row]
        return None if known is None else known.slot

    def reply_counts(self, row: int) -> Tensor | None:
        """int32 [vocab_size] of a row that uses penalties or a bias, else None."""
        known = self._rows[row]
        return None if known is None or known.slot is None else self._adjust.reply_counts(known.slot)

    def _choose(
        self,
        batch: _Batch,
        raw: Tensor,
        best: Tensor,
        ids: Tensor,
        rows_dev: Tensor,
        positions: Tensor,
        assumed: Sequence[Sequence[int]] | None,
    ) -> tuple[Tensor, Tensor]:
        """(ids, largest adjusted logit) of the special rows."""
        whole = len(batch.special) == len(batch.rows)
        if not whole:
            best, ids = best[batch.special_dev], ids[batch.special_dev]
            rows_dev, positions = rows_dev[batch.special_dev], positions[batch.special_dev]
            raw = raw.index_select(0, batch.special_dev)
        if batch.slots:
            plain = raw.index_select(0, batch.adjusted)
            changed = self._adjust.apply_(plain.clone() if assumed else plain, batch.slots_dev, batch.slots)
            if assumed:
                self._adjust.assume_(changed, plain, batch.slots, [assumed[place] for place in batch.counted_places])
            raw = changed if len(batch.slots) == len(batch.special) else raw.index_copy(0, batch.adjusted, changed)
            best, ids = self._best(raw)
        if not batch.drawn:
            return ids, best
        if self._row_by_row:
            return self._draw_rows(batch, raw, best, ids, positions), best
        if len(batch.drawn) < len(batch.special):
            raw, rows_dev, positions = (part[batch.drawn_dev] for part in (raw, rows_dev, positions))
        drawn_best = best if len(batch.drawn) == len(batch.special) else best[batch.drawn_dev]
        if self._kernels is not None:
            filtered = batch.any_top_k or batch.any_top_p
            drawn = self._draw_fused(raw, drawn_best, rows_dev, positions, filtered=filtered)
            return ids.index_copy(0, batch.drawn_dev, drawn), best
        drawn = draw_torch(
            raw,
            drawn_best,
            *self._settings_of(rows_dev),
            noise.position_keys(self._streams[rows_dev], positions),
            any_top_k=batch.any_top_k,
            any_top_p=batch.any_top_p,
        )
        return ids.index_copy(0, batch.drawn_dev, drawn), best

    def _best(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        return _best(logits) if self._kernels is None else self._kernels.argmax(logits)

    def _draw_rows(self, batch: _Batch, raw: Tensor, best: Tensor, ids: Tensor, positions: Tensor) -> Tensor:
        scores, bests, at, chosen = raw.numpy(), best.tolist(), positions.tolist(), ids.tolist()
        for place in batch.drawn:
            row = batch.rows[batch.special[place]]
            if row.filters is not None and -float("inf") < bests[place] < float("inf"):
                key = noise.position_key(row.stream, at[place])
                chosen[place] = draw_numpy(scores[place], bests[place], row.filters, key)
        return torch.tensor(chosen)

    def _settings_of(self, rows_dev: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        temperature, top_p, min_p = self._settings[rows_dev].unbind(1)
        return temperature, self._top_k[rows_dev], top_p, min_p

    def _batch(self, rows: Sequence[int]) -> _Batch:
        key = tuple(rows)
        batch = self._batches.get(key)
        if batch is None:
            if len(self._batches) >= KEPT_BATCHES:
                self._batches.clear()
            batch = self._batches[key] = self._make_batch(key)
        return batch

    def _make_batch(self, key: tuple[int, ...]) -> _Batch:
        rows = []
        for row in key:
            known = self._rows[row]
            if known is None:
                raise ValueError(f"row {row} holds no request")
            rows.append(known)
        special = tuple(i for i, row in enumerate(rows) if row.filters is not None or row.slot is not None)
        adjusted = [place for place, i in enumerate(special) if rows[i].slot is not None]
        slots = tuple(slot for row in rows if (slot := row.slot) is not None)
        drawn = tuple(place for place, i in enumerate(special) if rows[i].filters is not None)
        scored = [i for i, row in enumerate(rows) if row.logprobs is not None]
        filters = [row.filters for row in rows if row.filters is not None]
        return _Batch(
            rows=tuple(rows),
            rows_dev=self._index(key),
            special=special,
            special_dev=self._index(special),
            adjusted=self._index(adjusted),
            counted=self._index([special[place] for place in adjusted]),
            counted_places=tuple(special[place] for place in adjusted),
            slots=slots,
            slots_dev=self._index(slots),
            drawn=drawn,
            drawn_dev=self._index(drawn),
            any_top_k=any(filter_.top_k > 0 for filter_ in filters),
            any_top_p=any(filter_.top_p < 1 for filter_ in filters),
            scored=self._index(scored) if scored else None,
            top_n=max((row.logprobs or 0 for row in rows), default=0),
        )

    def _index(self, values: Sequence[int]) -> Tensor:
        return upload(values, torch.int64, self._device)


def _sampling_kernels() -> _Kernels | None:
    """The Triton sampling kernels, or None where Triton cannot be imported."""
    try:
        from octavo.kernels.sampling import argmax, draw
        from octavo.kernels.sampling_bounds import bounds
    except ImportError:
        return None
    return _Kernels(argmax, draw, bounds)


def _best(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Largest logit and its id (the lowest of equals) of each row; NaN if the row holds one."""
    if logits.device.type != "cpu":
        best, ids = logits.max(-1)
        return best, ids
    scores = logits.numpy()
    ids = scores.argmax(-1)  # vectorised there, ten times faster than torch's on the CPU
    return torch.from_numpy(scores[np.arange(len(ids)), ids]), torch.from_numpy(ids)


def _is_finite(best: Tensor) -> Tensor:
    """bool [N]; on the CPU one operation instead of torch's four."""
    return torch.isfinite(best) if best.device.type != "cpu" else torch.from_numpy(np.isfinite(best.numpy()))
