"""int8 weights on the CPU through torch's own products, which read the codes instead of decoding them.

A row of activations is multiplied as it is up to four rows, from five on as two whole numbers of 8 bits (15 bits of the
row's largest: more than bfloat16 has there), from seventeen on with weights widened to 16 bit a run of rows at a time.
All three are weight-only int8 up to the rounding of sums, and no row depends on its neighbours.
"""

from __future__ import annotations

import logging
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.engine.quant.base import Format, LinearSpec, Packed
from octavo.engine.quant.dynamic import DynamicInt8Format, LLMInt8Format, has_whole_number_products
from octavo.engine.quant.grouped import GroupedFormat
from octavo.engine.quant.products import Product, register

log = logging.getLogger(__name__)

_RUN = 1 << 20  # codes widened at a time: 2 MiB, which stay in the core's cache
_FINEST = 127 * 256  # the largest number that two signed bytes make up


def few_rows(x: Tensor, packed: Packed) -> Tensor:
    """For 1 to 4 rows, bounded by reading the codes: half the bytes of 16-bit weights."""
    codes = packed.planes["codes"]
    # by scales of one, then the real ones in float32: torch would round them to the activations' type
    y = torch._weight_int8pack_mm(x, codes, _ones(codes.shape[0], x.dtype))
    return _scaled(y, packed)


def some_rows(x: Tensor, packed: Packed) -> Tensor:
    """For 5 to 16 rows: the processor's whole-number products of the high and the low byte of each activation."""
    codes, rows = packed.planes["codes"], x.shape[0]
    wide = x.float()
    step = wide.abs().amax(-1, keepdim=True).clamp_(min=1e-30) / _FINEST
    fine = wide / step
    high = (fine * (1 / 256)).round_()
    parts = torch.empty((2 * rows, x.shape[1]), dtype=torch.int8)
    parts[:rows] = high
    parts[rows:] = fine.sub_(high, alpha=256).round_().clamp_(max=127)
    sums = torch._int_mm(parts, codes.t())
    y = sums[:rows].float().mul_(256).add_(sums[rows:]).mul_(step)
    return _scaled(y, packed).to(x.dtype)


def many_rows(x: Tensor, packed: Packed) -> Tensor:
    """For prompts: 16-bit products with codes that were widened a run of rows at a time."""
    codes = packed.planes["codes"]
    y = x.new_empty((x.shape[0], codes.shape[0]))
    step = max(1, _RUN // codes.shape[1])
    for begin in range(0, codes.shape[0], step):
        y[:, begin : begin + step] = F.linear(x, codes[begin : begin + step].to(x.dtype))
    return _scaled(y, packed)


def _scaled(y: Tensor, packed: Packed) -> Tensor:
    y = (y * packed.planes["scale"].t()).to(packed.dtype)
    return y if packed.bias is None else y.add_(packed.bias)


@lru_cache(maxsize=32)
def _ones(rows: int, dtype: torch.dtype) -> Tensor:
    return torch.ones(rows, dtype=dtype)


def _by_row(form: Format, spec: LinearSpec, dtype: torch.dtype) -> bool:
    """Plain int8 with a scale for each row; float16 could not hold the sums before they are scaled."""
    return (
        isinstance(form, GroupedFormat)
        and not isinstance(form, DynamicInt8Format | LLMInt8Format)
        and not (form.group or form.zeros or form.shifts or form.outer or form.ordered)
        and dtype in (torch.bfloat16, torch.float32)
    )


@lru_cache(maxsize=2)
def _has_packed_products(dtype: torch.dtype) -> bool:
    try:
        x, codes = torch.ones((2, 64), dtype=dtype), torch.ones((64, 64), dtype=torch.int8)
        return bool((torch._weight_int8pack_mm(x, codes, torch.ones(64, dtype=dtype)) == 64).all())
    except (RuntimeError, AttributeError):
        return False


register(Product(many_rows, "int8", "cpu", rows=(5, None), fits=_by_row))
register(
    Product(
        some_rows,
        "int8",
        "cpu",
        rows=(5, 16),
        fits=lambda form, spec, dtype: _by_row(form, spec, dtype) and has_whole_number_products(),
    )
)
register(
    Product(
        few_rows,
        "int8",
        "cpu",
        rows=(1, 4),
        fits=lambda form, spec, dtype: _by_row(form, spec, dtype) and _has_packed_products(dtype),
    )
)
