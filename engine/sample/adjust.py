"""Logit bias and the repetition, presence and frequency penalties of the rows that use them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from octavo.engine.request import SamplingParams
from octavo.engine.sample.fields import BAN
from octavo.engine.transfer import upload


class Adjustments:
    """One slot a row that biases or penalises; rows that do neither cost nothing.

    A slot lists the tokens its request has seen, so that a step touches those and not the whole vocabulary, and counts
    how often the reply used each. Shapes: S slots, V vocabulary, L seen tokens, B biases.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab = vocab_size
        self._device = device
        self._free: list[int] = []
        self._lengths: list[int] = []  # of each slot's seen tokens, repeats included, as the host knows it
        self._seen = torch.zeros(0, 0, dtype=torch.int64, device=device)  # [S, L], filled up with the first token
        self._seen_len = torch.zeros(0, dtype=torch.int64, device=device)  # [S]
        self._counts = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)  # of the reply, [S, V]
        self._strength = torch.zeros(0, 3, device=device)  # repetition, presence, frequency [S, 3]
        self._bias_ids = torch.zeros(0, 0, dtype=torch.int64, device=device)  # [S, B], filled up with id 0
        self._bias = torch.zeros(0, 0, device=device)  # float32 [S, B], filled up with 0; -inf removes the token

    @staticmethod
    def needed(params: SamplingParams) -> bool:
        penalties = params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0
        return penalties or bool(params.logit_bias)

    def join(self, params: SamplingParams, tokens: Sequence[int], num_prompt: int) -> int:
        """Takes a slot and builds its state from the tokens so far, as after any preemption."""
        if not self._free:
            self._add_slots()
        slot = self._free.pop()
        seen = list(dict.fromkeys(token for token in tokens if token < self._vocab)) or [0]
        reply = [token for token in tokens[num_prompt:] if token < self._vocab]
        self._lengths[slot] = len(seen)
        self._seen = _widen(self._seen, len(seen) + 1, repeat_first=True)
        self._seen[slot] = seen[0]
        self._seen[slot, : len(seen)] = upload(seen, torch.int64, self._device)
        self._seen_len[slot] = len(seen)
        counts = torch.bincount(torch.tensor(reply, dtype=torch.int64), minlength=self._vocab)
        self._counts[slot] = upload(counts.numpy(), torch.int32, self._device)
        strength = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
        self._strength[slot] = upload(strength, torch.float32, self._device)
        biases = {token: bias for token, bias in params.logit_bias if token < self._vocab}
        values = [float("-inf") if bias <= BAN else bias for bias in biases.values()]
        self._bias_ids, self._bias = _widen(self._bias_ids, len(biases)), _widen(self._bias, len(biases))
        self._bias_ids[slot], self._bias[slot] = 0, 0
        self._bias_ids[slot, : len(biases)] = upload(list(biases), torch.int64, self._device)
        self._bias[slot, : len(biases)] = upload(values, torch.float32, self._device)
        return slot

    def leave(self, slot: int) -> None:
        self._free.append(slot)

    def apply_(self, logits: Tensor, slots: Tensor, host_slots: Sequence[int]) -> Tensor:
        """Adjusts float32 logits [N, V] in place for slots int64 [N]: bias first, then the penalties.

        Repetition divides positive logits and multiplies negative ones (Keskar et al., CTRL, 2019), over prompt and
        reply; presence and frequency are subtracted, over the reply alone.
        """
        if self._bias.shape[1]:
            logits.scatter_add_(1, self._bias_ids[slots], self._bias[slots])
        seen = self._seen[slots, : max(self._lengths[slot] for slot in host_slots)]
        repetition, presence, frequency = (part[:, None] for part in self._strength[slots].unbind(1))
        values = logits.gather(1, seen)
        values = torch.where(values > 0, values / repetition, values * repetition)
        counts = self._counts[slots[:, None], seen]
        values -= counts * frequency + (counts > 0) * presence
        return logits.scatter_(1, seen, values)  # a repeated token is written twice, with the same value

    def assume_(self, logits: Tensor, plain: Tensor, slots: Sequence[int], assumed: Sequence[Sequence[int]]) -> Tensor:
        """Makes adjusted logits [N, V] in place what they were if the tokens of `assumed` had followed each reply.

        `plain` [N, V] are the logits before any adjustment. Only the assumed tokens' scores can differ.
        """
        places = [place for place, tokens in enumerate(assumed) if tokens]
        if not places:
            return logits
        width = max(len(assumed[place]) for place in places)
        # filled up with the first: it is written more than once, with one value, but counted only as often as it came
        ids = upload(
            np.array([[*assumed[p], *[assumed[p][0]] * (width - len(assumed[p]))] for p in places]),
            torch.int64,
            self._device,
        )
        real = upload(np.array([[i < len(assumed[p]) for i in range(width)] for p in places]), torch.bool, self._device)
        at = upload(places, torch.int64, self._device)
        slot = upload([slots[place] for place in places], torch.int64, self._device)
        repetition, presence, frequency = (part[:, None] for part in self._strength[slot].unbind(1))
        values = plain[at].gather(1, ids)
        if self._bias.shape[1]:
            biased = ids[:, :, None] == self._bias_ids[slot][:, None]
            values = values + torch.where(biased, self._bias[slot][:, None], 0.0).sum(-1)
        values = torch.where(values > 0, values / repetition, values * repetition)
        more = ((ids[:, :, None] == ids[:, None]) & real[:, None]).sum(-1)
        counts = self._counts[slot[:, None], ids] + more
        values = values - counts * frequency - presence
        logits[at] = logits[at].scatter_(1, ids, values)
        return logits

    def count(self, slots: Tensor, host_slots: Sequence[int], ids: Tensor) -> None:
        """One more reply token, ids int64 [N], in each of the different slots int64 [N]."""
        for slot in host_slots:
            self._lengths[slot] += 1
        self._seen = _widen(self._seen, max(self._lengths[slot] for slot in host_slots) + 1, repeat_first=True)
        self._seen[slots, self._seen_len[slots]] = ids
        self._seen_len[slots] += 1
        self._counts[slots, ids] += 1

    def reply_counts(self, slot: int) -> Tensor:
        """int32 [V]: how often the reply used each token."""
        return self._counts[slot]

    def _add_slots(self) -> None:
        old = len(self._lengths)
        more = max(4, old)
        self._free.extend(range(old + more - 1, old - 1, -1))
        self._lengths += [0] * more
        for name in ("_seen", "_seen_len", "_counts", "_strength", "_bias_ids", "_bias"):
            plane = getattr(self, name)
            setattr(self, name, torch.cat((plane, plane.new_zeros(more, *plane.shape[1:]))))


def _widen(plane: Tensor, width: int, *, repeat_first: bool = False) -> Tensor:
    """`plane` [S, W] with at least `width` columns; doubling, so that growing token by token is cheap."""
    if width <= plane.shape[1]:
        return plane
    more = max(width, 2 * plane.shape[1]) - plane.shape[1]
    fill = plane[:, :1].expand(-1, more) if repeat_first and plane.shape[1] else plane.new_zeros(len(plane), more)
    return torch.cat((plane, fill), dim=1)
