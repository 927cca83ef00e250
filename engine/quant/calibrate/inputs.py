"""What is kept of all the activations that a linear reads: their sizes by channel, some of them, and their products."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.engine.quant.calibrate.errors import QuantizeError


class Inputs:
    """Gathered from batches of x [T, in] that have `tokens` rows in all; all of it float32, on their device."""

    def __init__(self, tokens: int, *, samples: int, gram: bool) -> None:
        """`samples` rows are kept, spread evenly; with `gram` also the sum of x^T x."""
        self.count = 0
        self.largest = torch.empty(0)  # [in], of magnitudes
        self.gram: Tensor | None = None  # [in, in]
        self._sum = torch.empty(0)
        self._wants_gram = gram
        self._kept: list[Tensor] = []
        self._rows = torch.arange(min(samples, tokens)) * tokens // min(samples, tokens)

    def add(self, x: Tensor) -> None:
        """Takes the next rows. QuantizeError if they hold what is no number."""
        wide = x.float()
        sizes = wide.abs()
        largest = sizes.amax(0)
        if not bool(largest.isfinite().all()):
            raise QuantizeError(
                f"The model computes numbers beyond what {str(x.dtype).removeprefix('torch.')} can hold.",
                remedy="Use --dtype float32.",
            )
        if self.count == 0:
            self.largest, self._sum = largest, sizes.sum(0)
        else:
            self.largest = torch.maximum(self.largest, largest)
            self._sum += sizes.sum(0)
        if self._wants_gram:
            if self.gram is None:
                self.gram = wide.T @ wide
            else:
                self.gram.addmm_(wide.T, wide)
        mine = self._rows[(self._rows >= self.count) & (self._rows < self.count + len(x))] - self.count
        if len(mine):
            self._kept.append(wide[mine.to(x.device)])
        self.count += len(x)

    @property
    def mean(self) -> Tensor:
        """Mean magnitude of every channel, [in]."""
        return self._sum / max(self.count, 1)

    @property
    def sample(self) -> Tensor:
        """The rows that were kept, [samples, in]."""
        if len(self._kept) > 1:
            self._kept = [torch.cat(self._kept)]
        return self._kept[0]
