"""The evenly spaced numbers that a weight is rounded to, as checkpoint formats store them: codes, scales, zero points.

weight = (code - zero) * scale, codes unsigned. Symmetric weights have the middle code as every zero point.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SHARES = tuple(1 - step / 20 for step in range(10))  # of a group's range that are tried
CHUNK = 1 << 24  # numbers of a weight that are tried at a time


@dataclass(frozen=True, slots=True)
class Rounded:
    """A weight [out, in] as codes uint8 [out, in], with float32 scales and whole zero points [out, groups]."""

    codes: Tensor
    scale: Tensor
    zero: Tensor

    def decode(self) -> Tensor:
        """float32 [out, in]."""
        groups = self.scale.shape[1]
        numbers = self.codes.float().unflatten(1, (groups, -1))
        return ((numbers - self.zero.unsqueeze(-1)) * self.scale.unsqueeze(-1)).flatten(1)

    def to(self, device: torch.device | str) -> Rounded:
        return Rounded(self.codes.to(device), self.scale.to(device), self.zero.to(device))


@dataclass(frozen=True, slots=True)
class Grid:
    """`group` neighbours in a row share a scale, the whole row if it is 0; scales are numbers of `scale_dtype`."""

    bits: int
    group: int
    symmetric: bool
    scale_dtype: torch.dtype

    @property
    def largest(self) -> int:
        return (1 << self.bits) - 1

    @property
    def middle(self) -> int:
        return 1 << (self.bits - 1)

    def size(self, in_dim: int) -> int:
        """Columns of a group."""
        return self.group or in_dim

    def fit(self, groups: Tensor, share: Tensor | float = 1.0) -> tuple[Tensor, Tensor]:
        """Scales and zero points [...] of groups [..., size] that span so much of each one's range about zero."""
        low, high = groups.amin(-1).clamp_(max=0.0), groups.amax(-1).clamp_(min=0.0)
        if self.symmetric:
            # the most negative code has no counterpart: four bits reach half a step further than seven times the scale,
            # where eight bits need not
            reach = self.largest / 2 if self.bits < 8 else self.middle - 1
            scale = torch.maximum(-low, high) * share / reach
        else:
            scale = (high - low) * share / self.largest
        least = torch.finfo(self.scale_dtype).smallest_normal
        scale = torch.where(scale > 0, scale.clamp(min=least), 1.0).to(self.scale_dtype).float()
        if self.symmetric:
            return scale, torch.full_like(scale, self.middle)
        return scale, (-low * share / scale).round_().clamp_(0, self.largest)

    def fit_weighted(self, groups: Tensor, importance: Tensor) -> tuple[Tensor, Tensor]:
        """`fit` with that share of each group's range [rows, ..., size] which gives the smallest sum of squared errors
        times importance, which spreads over the groups of a row."""
        rows = max(1, CHUNK // groups[0].numel())
        if len(groups) > rows:
            found = [self.fit_weighted(part, importance) for part in groups.split(rows)]
            return torch.cat([one for one, _ in found]), torch.cat([other for _, other in found])
        scale, zero = self.fit(groups)
        least = torch.full_like(scale, float("inf"))
        for share in SHARES:
            tried, shifted = self.fit(groups, share)
            steps, zeros = tried.unsqueeze(-1), shifted.unsqueeze(-1)
            difference = self.encode(groups, steps, zeros).sub_(zeros).mul_(steps).sub_(groups)
            error = difference.square_().mul_(importance).sum(-1)
            better = error < least
            scale, zero = torch.where(better, tried, scale), torch.where(better, shifted, zero)
            least = torch.where(better, error, least)
        return scale, zero

    def encode(self, numbers: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
        """float32 codes of numbers; scales and zero points of a shape that spreads over them."""
        return (numbers / scale).round_().add_(zero).clamp_(0, self.largest)

    def nearest(self, weight: Tensor, share: Tensor | float = 1.0) -> Rounded:
        """Every number of float32 [out, in] at the nearest code; `share` [out, groups] or one for all."""
        groups = weight.unflatten(1, (-1, self.size(weight.shape[1])))
        scale, zero = self.fit(groups, share)
        codes = self.encode(groups, scale.unsqueeze(-1), zero.unsqueeze(-1))
        return Rounded(codes.flatten(1).to(torch.uint8), scale, zero)

    def snapped(self, weight: Tensor, share: Tensor | float = 1.0) -> Tensor:
        """What `nearest` decodes to, float32 [out, in]."""
        groups = weight.unflatten(1, (-1, self.size(weight.shape[1])))
        scale, zero = (plane.unsqueeze(-1) for plane in self.fit(groups, share))
        return self.encode(groups, scale, zero).sub_(zero).mul_(scale).flatten(1)
