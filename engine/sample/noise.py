"""The sampler's noise: a hash of (seed, choice, position, token id), so that a draw depends on nothing else.

Every step is arithmetic modulo 2^32 (`>>` shifts zeros in): a kernel in uint32, numpy and torch give the same bits.

    mix(x):    x ^= x >> 16;  x *= 0x85EBCA6B;  x ^= x >> 13;  x *= 0xC2B2AE35;  x ^= x >> 16
    stream of (seed, choice), made once a request; lo and hi are the halves of the 64-bit seed:
        a = mix(mix(mix(lo ^ 0x243F6A88) + hi) + choice)
        b = mix(mix(mix(hi ^ 0x85A308D3) + lo) + choice)
    key of a position p (of the token being drawn, modulo 2^32):
        k0 = mix(a + p * 0x9E3779B1)
        k1 = mix(b + p * 0x9E3779B1)
    bits of a token id t:
        h = t * 0x9E3779B1 + k0
        h ^= h >> 16;  h *= 0x85EBCA6B;  h ^= h >> 13;  h ^= k1;  h *= 0xC2B2AE35;  h ^= h >> 16
    an exponential variate of rate 1, in float32:
        u = min((float(h) + 0.5) * 2^-32, 1 - 2^-24)
        E = -log1p(-u)          without log1p: u + u^2/2 + u^3/3 + u^4/4 below u = 1/64, else -log(1 - u)

The drawn token is argmax of weight / E, or of log(weight) - log(E): the Gumbel-max trick (Maddison et al., "A*
Sampling", 2014) in its exponential form. The lowest id wins a tie. `mix` is the finalizer of MurmurHash3 (Appleby,
public domain).
E lies in [MIN_VARIATE, MAX_VARIATE], so a token whose weight is below NEGLIGIBLE times the largest can never win.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MASK = 0xFFFFFFFF
GOLDEN = 0x9E3779B1
MULTIPLY_1 = 0x85EBCA6B
MULTIPLY_2 = 0xC2B2AE35
START_A = 0x243F6A88
START_B = 0x85A308D3
MIN_VARIATE = 1.1641532e-10  # 2^-33
MAX_VARIATE = 16.635532  # -log(2^-24)
NEGLIGIBLE = 6.9e-12  # just under MIN_VARIATE / MAX_VARIATE


def stream(seed: int, choice: int = 0) -> tuple[int, int]:
    """The two uint32 words (a, b) of a request's noise; `seed` counts modulo 2^64."""
    low, high = seed & MASK, (seed >> 32) & MASK
    a = _mix(_mix(_mix(low ^ START_A) + high & MASK) + choice & MASK)
    b = _mix(_mix(_mix(high ^ START_B) + low & MASK) + choice & MASK)
    return a, b


def position_key(words: tuple[int, int], position: int) -> tuple[int, int]:
    """(k0, k1) of one position of a stream, on the host."""
    step = position * GOLDEN
    return _mix(words[0] + step & MASK), _mix(words[1] + step & MASK)


def position_keys(streams: Tensor, positions: Tensor) -> Tensor:
    """int64 [N, 2] of (k0, k1) from streams int64 [N, 2] and positions int64 [N], on their device."""
    return _mix_tensor((streams + (positions * GOLDEN)[:, None]) & MASK)


def variates(keys: Tensor, ids: Tensor) -> Tensor:
    """float32 [N, K] exponential variates for keys int64 [N, 2] and token ids int64 [K] or [N, K]."""
    h = (ids * GOLDEN + keys[:, :1]) & MASK
    h = h ^ (h >> 16)
    h = (h * MULTIPLY_1) & MASK
    h = h ^ (h >> 13) ^ keys[:, 1:]
    h = (h * MULTIPLY_2) & MASK
    h = h ^ (h >> 16)
    u = ((h.to(torch.float32) + 0.5) * 2.0**-32).clamp_(max=1 - 2.0**-24)
    return torch.log1p(-u).neg_()


def variates_numpy(key_0: int, key_1: int, ids: NDArray[np.uint32]) -> NDArray[np.float32]:
    """float32 [K] for one row's key and ids uint32 [K]: the same bits, several times faster on the CPU."""
    h = ids * np.uint32(GOLDEN)
    h += np.uint32(key_0)
    h ^= h >> np.uint32(16)
    h *= np.uint32(MULTIPLY_1)
    h ^= h >> np.uint32(13)
    h ^= np.uint32(key_1)
    h *= np.uint32(MULTIPLY_2)
    h ^= h >> np.uint32(16)
    u = h.astype(np.float32)
    u += np.float32(0.5)
    u *= np.float32(2.0**-32)
    np.minimum(u, np.float32(1 - 2.0**-24), out=u)
    np.negative(u, out=u)
    np.log1p(u, out=u)
    return np.negative(u, out=u)


def _mix(x: int) -> int:
    x ^= x >> 16
    x = x * MULTIPLY_1 & MASK
    x ^= x >> 13
    x = x * MULTIPLY_2 & MASK
    return x ^ (x >> 16)


def _mix_tensor(x: Tensor) -> Tensor:
    x = x ^ (x >> 16)
    x = (x * MULTIPLY_1) & MASK
    x = x ^ (x >> 13)
    x = (x * MULTIPLY_2) & MASK
    return x ^ (x >> 16)
