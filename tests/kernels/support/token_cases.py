"""What rounding tokens to 8 bits may change in each number."""

from __future__ import annotations

import torch
from torch import Tensor

SLACK = 1e-4  # of a bound: a quotient in float32 is itself rounded, which decides what stands half way


def loud_tokens(device: torch.device | str = "cpu") -> Tensor:
    """bfloat16 [70, 14336], the same every time; one channel is thirty times as loud as the others."""
    x = torch.randn(70, 14336, generator=torch.Generator().manual_seed(0)).bfloat16()
    x[:, 5] *= 30
    return x.to(device)


def assert_rounded(codes: Tensor, scales: Tensor, x: Tensor) -> None:
    """Every code, times its token's scale [T, 1], is as near to its number as the nearest code can be.

    int8: half a step. E4M3, with three bits behind the leading one: half a unit in the last place of the number, or
    half the subnormal step of 2^-9 (Micikevicius et al., "FP8 Formats for Deep Learning", 2022).
    """
    exact = x.double() / scales.double()
    if codes.dtype == torch.int8:
        allowed = torch.full_like(exact, 0.5)
    else:
        exponent = exact.abs().clamp(min=2.0**-6).log2().floor()
        allowed = 2.0 ** (exponent - 4)
    apart = (codes.double() - exact).abs()
    worst = float((apart / allowed).max())
    assert worst <= 1 + SLACK, f"a number is {worst:.4f} times as far from its code as it may be"
