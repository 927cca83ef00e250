"""int4, nf4, fp4, E2M1, int8 and E4M3 weights on a GPU through kernels that read the codes: see quant_linear.py.

Up to 64 rows (one without tensor cores) a product decodes on the way to the multipliers, and what stands around it is
folded in; for more, the weight is decoded to 16 bit by one kernel and multiplied by the library. Formats that round
activations do so from 17 rows on, where 8 bits by 8 are faster: below, reading is all that counts, and the exact
product costs nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.engine.quant.base import ROW_BUCKETS, Format, LinearSpec, Packed
from octavo.engine.quant.codes import TableCode, UnsignedCode
from octavo.engine.quant.dynamic import DynamicInt8Format, Float8Format, LLMInt8Format, has_float8_units
from octavo.engine.quant.grouped import GroupedFormat
from octavo.engine.quant.products import Fused, Product, register
from octavo.kernels.linear_tiles import tickets_of
from octavo.kernels.quant_decode import decode
from octavo.kernels.quant_weight import BLOCK, CodedWeight
from octavo.kernels.skinny_linear import skinny_linear
from octavo.kernels.table_number import table_bytes, table_of
from octavo.kernels.token_codes import round_tokens, scale_sums

_SHARED_INPUT_ROWS = 256  # up to which that gains more than a launch for the scales costs
_TENSOR_CORES = (8, 0)  # from this compute capability on, Triton's dot reaches them


def four_bit(form: Format, packed: Packed) -> CodedWeight:
    """A finished 4-bit weight."""
    assert isinstance(form, GroupedFormat)
    assert isinstance(form.code, UnsignedCode)
    planes = packed.planes
    group = form.group or packed.in_dim
    zero, shift = planes.get("zero"), planes.get("shift")
    tickets_of(planes["words"].device)
    return CodedWeight("int4", planes["words"], planes["scale"], packed.in_dim, group, form.code.offset, zero, shift)


def by_table(form: Format, packed: Packed) -> CodedWeight:
    """A finished weight whose codes name numbers of a table."""
    assert isinstance(form, GroupedFormat)
    assert isinstance(form.code, TableCode)
    words, scale = packed.planes["words"], packed.planes["scale"]
    if scale.is_floating_point() and scale.element_size() == 1:
        scale = scale.view(torch.uint8)
    outer = packed.planes.get("outer")
    if form.outer == "over":
        assert outer is not None
        outer = 1.0 / outer
    ready(form.code.name, words.device)
    return CodedWeight(form.code.name, words, scale, packed.in_dim, form.group or packed.in_dim, outer=outer)


def ready(table: str, device: torch.device) -> None:
    """Puts what kernels of a table read where it is needed, before a graph is captured."""
    tickets_of(device)
    table_of(table, device)
    table_bytes(table, device)


def eight_bit(form: Format, packed: Packed) -> CodedWeight:
    """An 8-bit weight with a scale for each row, of E4M3 also for each group of columns."""
    assert isinstance(form, GroupedFormat)
    planes, scale, size = packed.planes, packed.planes["scale"], packed.in_dim
    if "words" in planes:
        tickets_of(scale.device)
        return CodedWeight("int8", planes["words"], scale, size, size)
    codes = planes["codes"]
    if codes.dtype == torch.int8:
        return CodedWeight("int8", codes, scale, size, size)
    tickets_of(scale.device)
    _one(scale.device)
    return CodedWeight("e4m3", codes.view(torch.uint8), scale, size, min(size, form.group or size))


def by_codes(x: Tensor, packed: Packed) -> Tensor:
    """For up to 64 rows."""
    assert packed.fused is not None
    return skinny_linear(x.contiguous(), packed.fused, packed.bias)


def decoded(x: Tensor, packed: Packed) -> Tensor:
    """For any number of rows: the library's product with a weight that was decoded for it."""
    assert packed.fused is not None
    return F.linear(x, decode(packed.fused, x.dtype), packed.bias)


def whole_numbers(x: Tensor, packed: Packed) -> Tensor:
    """int8 by int8, for 17 rows and more: the library's whole-number sums between two kernels of ours."""
    return _whole_numbers_of(*round_tokens(x, torch.int8), packed, x.dtype)


def _whole_numbers_of(codes: Tensor, scales: Tensor, packed: Packed, dtype: torch.dtype) -> Tensor:
    return scale_sums(_whole_number_sums(codes, packed), scales, packed.planes["scale"], packed.bias, dtype)


def _whole_number_sums(codes: Tensor, packed: Packed) -> Tensor:
    return torch._int_mm(codes, packed.planes["codes"].t())


def eight_bit_floats(x: Tensor, packed: Packed) -> Tensor:
    """E4M3 by E4M3, for any number of rows, on GPUs with FP8 units."""
    return _eight_bit_floats_of(*round_tokens(x, torch.float8_e4m3fn), packed, x.dtype)


def _eight_bit_floats_of(rounded: Tensor, scales: Tensor, packed: Packed, dtype: torch.dtype) -> Tensor:
    codes, scale = packed.planes["codes"], packed.planes["scale"]
    outs, size = codes.shape
    if rounded.shape[0] <= _SHARED_INPUT_ROWS and size >= outs:
        # only without scales by row do the library's programs share the input of few outputs
        return scale_sums(_eight_bit_float_sums(rounded, packed), scales, scale, packed.bias, dtype)
    # the library gives bfloat16 for scales by token and output
    y = torch._scaled_mm(rounded, codes.t(), scale_a=scales, scale_b=scale.t(), out_dtype=torch.bfloat16)
    y = y.to(dtype)
    return y if packed.bias is None else y.add_(packed.bias)


def _eight_bit_float_sums(codes: Tensor, packed: Packed) -> Tensor:
    one = _one(codes.device)
    return torch._scaled_mm(codes, packed.planes["codes"].t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


@dataclass(frozen=True, slots=True)
class OfTokens:
    """A product for activations that are rounded already: `run(codes, scales, packed, dtype)` of codes of a `kind`, and
    `sums(codes, packed)`, which are still to be multiplied by the scales of tokens and outputs."""

    kind: torch.dtype
    run: Callable[[Tensor, Tensor, Packed, torch.dtype], Tensor]
    sums: Callable[[Tensor, Packed], Tensor]


_OF_TOKENS: dict[Callable[[Tensor, Packed], Tensor], OfTokens] = {
    whole_numbers: OfTokens(torch.int8, _whole_numbers_of, _whole_number_sums),
    eight_bit_floats: OfTokens(torch.float8_e4m3fn, _eight_bit_floats_of, _eight_bit_float_sums),
}


def of_tokens(packed: Packed, rows: int) -> OfTokens | None:
    """What multiplies so many rows by a weight, if it rounds them by tokens first."""
    run = packed.products[bisect_left(ROW_BUCKETS, rows)] if packed.products else None
    return None if run is None else _OF_TOKENS.get(run)


@lru_cache(maxsize=16)
def _one(device: torch.device) -> Tensor:
    """No scale. It must be there before a graph is captured, as what a capture allocates belongs to its graph."""
    return torch.ones((), device=device)


def enter_blocks(
    kinds: Iterable[str], view: Callable[[Format, Packed], CodedWeight], many: Callable[[Tensor, Packed], Tensor]
) -> None:
    """Enters the kernels of types of GGUF blocks: `view` gives the weight as they read it, `many` multiplies any number
    of rows."""
    for kind in kinds:
        layout = f"gguf-{kind}"
        register(Fused(view, layout, "cuda", _not_experts))
        register(Product(many, layout, "cuda", fits=_not_experts))
        register(Product(by_codes, layout, "cuda", rows=(1, 64), capability=_TENSOR_CORES, fits=_not_experts))
        register(Product(by_codes, layout, "cuda", rows=(1, 1), fits=_not_experts))


def _not_experts(form: Format, spec: LinearSpec, dtype: torch.dtype) -> bool:
    return spec.experts is None and _sixteen_bit(dtype)


def _four_bit_fits(form: Format, spec: LinearSpec, dtype: torch.dtype) -> bool:
    return isinstance(form, GroupedFormat) and form.interleaves(spec) and _sixteen_bit(dtype)


def _tiles_fit(form: Format, spec: LinearSpec, dtype: torch.dtype) -> bool:
    return _four_bit_fits(form, spec, dtype) and isinstance(form, GroupedFormat) and not form.outer


def _by_row(form: Format, spec: LinearSpec, dtype: torch.dtype) -> bool:
    return (
        isinstance(form, GroupedFormat)
        and not isinstance(form, LLMInt8Format)  # multiplies outliers apart, and its scales are 127 times as large
        and not (form.group or form.zeros or form.shifts or form.outer or form.ordered)
        and _sixteen_bit(dtype)
    )


def _by_groups(form: Format, spec: LinearSpec, dtype: torch.dtype) -> bool:
    """E4M3 with a scale for each group of a row's columns, as in blocks of 128 x 128."""
    return (
        isinstance(form, GroupedFormat)
        and form.group > 0
        and form.group % BLOCK == 0
        and form.scale_dtype == torch.float32
        and not (form.zeros or form.shifts or form.outer or form.ordered)
        and _sixteen_bit(dtype)
    )


def _keeps_activations(form: Format, spec: LinearSpec, dtype: torch.dtype) -> bool:
    """Of 8-bit formats, those whose products of many rows are with 16-bit activations on this machine's GPU."""
    if isinstance(form, DynamicInt8Format):
        return False
    rounds = isinstance(form, Float8Format) and has_float8_units(torch.device("cuda"))
    return not rounds and _by_row(form, spec, dtype)


def _whole_numbers_fit(form: Format, spec: LinearSpec, dtype: torch.dtype) -> bool:
    sizes = (spec.in_dim, spec.out_dim)
    return isinstance(form, DynamicInt8Format) and _by_row(form, spec, dtype) and all(size % 8 == 0 for size in sizes)


def _eight_bit_floats_fit(form: Format, spec: LinearSpec, dtype: torch.dtype) -> bool:
    sizes = (spec.in_dim, spec.out_dim)
    return isinstance(form, Float8Format) and _by_row(form, spec, dtype) and all(size % 16 == 0 for size in sizes)


def _sixteen_bit(dtype: torch.dtype) -> bool:
    return dtype in (torch.bfloat16, torch.float16)


for _layout in ("uint4", "nf4", "fp4", "e2m1"):
    register(Fused(four_bit if _layout == "uint4" else by_table, _layout, "cuda", _four_bit_fits))
    register(Product(decoded, _layout, "cuda", fits=_four_bit_fits))
    register(Product(by_codes, _layout, "cuda", rows=(1, 64), capability=_TENSOR_CORES, fits=_tiles_fit))
    register(Product(by_codes, _layout, "cuda", rows=(1, 1), fits=_four_bit_fits))
register(Product(whole_numbers, "int8", "cuda", rows=(17, None), fits=_whole_numbers_fit))
register(
    Product(eight_bit_floats, "float8_e4m3", "cuda", rows=(17, None), capability=(8, 9), fits=_eight_bit_floats_fit)
)
for _layout in ("int8", "float8_e4m3"):
    register(Fused(eight_bit, _layout, "cuda", _by_row))
    register(Product(decoded, _layout, "cuda", fits=_keeps_activations))
    register(Product(by_codes, _layout, "cuda", rows=(1, 64), capability=_TENSOR_CORES, fits=_keeps_activations))
    register(Product(by_codes, _layout, "cuda", rows=(1, 16), capability=_TENSOR_CORES, fits=_by_row))
    register(Product(by_codes, _layout, "cuda", rows=(1, 1), fits=_by_row))
register(Fused(eight_bit, "float8_e4m3", "cuda", _by_groups))
register(Product(decoded, "float8_e4m3", "cuda", fits=_by_groups))
register(Product(by_codes, "float8_e4m3", "cuda", rows=(1, 64), capability=_TENSOR_CORES, fits=_by_groups))
register(Product(by_codes, "float8_e4m3", "cuda", rows=(1, 1), fits=_by_groups))
