"""Formats whose 4-bit code names one of sixteen numbers."""

from __future__ import annotations

# NF4: the quantiles of a normal distribution (QLoRA, Dettmers et al. 2023, appendix E). FP4: the library's own order of
# {0, 1/192, 1/6, 1/4, 1/3, 1/2, 2/3, 1} and their negatives (bitsandbytes). E2M1: the OCP Microscaling specification.
# IQ4: the non-linear grid of IQ4_NL and IQ4_XS (GGML block formats).
_FP4 = (0.0, 0.0052083333, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
TABLES: dict[str, tuple[float, ...]] = {
    "nf4": (
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ),
    "fp4": (*_FP4, *(-value for value in _FP4)),
    "e2m1": (*_E2M1, *(-value for value in _E2M1)),
    "iq4": tuple(map(float, (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113))),
}
