"""What is compiled ahead: every public function, called with types and sizes that make it choose each of its branches.

The tensors have no storage, as on a device with a generation's figures; what would be launched is recorded, so the
tiles that are compiled are the tiles chosen at run time. Without `full`, each generation gets every kernel in its
natural 16-bit type and the common head size; the other types, codes and head sizes are spread over the generations.
"""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from octavo.kernels import (
    activation,
    checks,
    decode_attention,
    dense_attention,
    gguf_decode,
    head_argmax,
    linear_parts,
    linear_wide,
    paged_attention,
    quant_decode,
    rms_norm,
    rope,
    rows,
    sampling,
    sampling_bounds,
    skinny_linear,
    token_codes,
    token_norm,
)
from octavo.kernels.attention_rope import NewTokens
from octavo.kernels.code_tables import TABLES
from octavo.kernels.decode_attention import SharedPrefixes
from octavo.kernels.device import DeviceTraits, as_device
from octavo.kernels.float8_linear import suits_float8
from octavo.kernels.gguf_weight import KINDS, BlockWeight
from octavo.kernels.kv_format import KVScales
from octavo.kernels.launch_record import Launch, recording
from octavo.kernels.paged_attention import AttentionShape
from octavo.kernels.quant_weight import CodedWeight, words_of

# Most shared memory of a block by compute capability (CUDA C++ Programming Guide, technical specifications).
TARGETS = {
    75: DeviceTraits(75, 40, 65536),
    80: DeviceTraits(80, 108, 166912),
    86: DeviceTraits(86, 84, 101376),
    89: DeviceTraits(89, 128, 101376),
    90: DeviceTraits(90, 132, 232448),
    100: DeviceTraits(100, 148, 232448),
    120: DeviceTraits(120, 170, 101376),
}


def record(target: int, full: bool = False) -> list[Launch]:
    """The distinct launches that this generation is checked with."""
    launches: dict[Launch, None] = {}
    with as_device(TARGETS[target]), recording(launches):
        _exercise(target, full)
    return list(launches)


def _exercise(target: int, full: bool) -> None:
    """Calls every public function with the types and sizes that make it choose each of its branches."""
    traits = TARGETS[target]
    native = torch.bfloat16 if traits.tensor_cores else torch.float16
    others = [dtype for dtype in (torch.float16, torch.float32, torch.bfloat16) if dtype != native]
    if not traits.tensor_cores:
        others.remove(torch.bfloat16)
    _sampling()
    _rows()
    _small_operations(native)
    _tens_of_rows(native)
    _attention(traits, native, _shape(128), full)
    for code in (torch.float8_e4m3fn, torch.int8) if full else _CODES.get(target, ()):
        _attention(traits, native, _shape(128), full, code=code)
        _cache_writes(native, code)
    _products(traits, native, full)
    _coded_products(traits, native, full)
    _block_products(traits, native, full)
    if full or target == 90:
        for dtype in others:
            _small_operations(dtype)
            _attention(traits, dtype, _shape(64), full)
        _attention(traits, torch.float32, _shape(64), full, code=torch.int8)
    for dim in (64, 80, 96, 256) if full else _SPREAD.get(target, ()):
        _attention(traits, native, _shape(dim), full)
    if full or target == 120:  # paging off, window and soft-cap, on a generation with little shared memory
        _attention(traits, native, AttentionShape(8, 4, 256, 256, 0.06, softcap=50.0, window=4096), full, 8192)


# More number formats of caches and head sizes, one a generation; 96 stands for all that no power of two equals.
_CODES = {75: (torch.int8,), 80: (torch.float8_e4m3fn,), 90: (torch.int8,), 120: (torch.float8_e4m3fn,)}
_SPREAD = {75: (64,), 86: (64,), 89: (96,), 90: (256,)}


def _shape(dim: int) -> AttentionShape:
    return AttentionShape(8, 2, dim, dim, dim**-0.5)


def _small_operations(dtype: torch.dtype) -> None:
    weights = (dtype, torch.float32) if dtype == torch.bfloat16 else (dtype,)
    for weight_dtype in weights:
        x, weight = _empty(7, 4096, dtype=dtype), _empty(4096, dtype=weight_dtype)
        rms_norm.rms_norm(x, weight, 1e-6)
        rms_norm.add_rms_norm(x, _empty(7, 4096, dtype=dtype), weight, 1e-6)
    qkv = _empty(7, 12 * 128, dtype=dtype)
    q, k, v = (part.unflatten(1, (-1, 128)) for part in qkv.split((8 * 128, 2 * 128, 2 * 128), 1))
    pages = _empty(9, 2, 16, 128, dtype=dtype)
    ids = _empty(7, dtype=torch.int64)
    rope.write_kv(k, v, pages, pages, ids)
    for rotary, norm in ((128, None), (64, _empty(128, dtype=dtype))):
        table = _empty(4096, rotary, dtype=torch.float32)
        rope.rope_write(q, k, v, table, ids, pages, pages, ids, norm, norm, 1e-6)
    for act in ("silu", "gelu", "gelu_pytorch_tanh"):
        activation.gated(_empty(7, 2 * 14336, dtype=dtype), act)


def _cache_writes(dtype: torch.dtype, code: torch.dtype) -> None:
    """Keys and values on their way into pages of 8-bit codes, kept for the dense path and not."""
    q, k, v = (part.unflatten(1, (-1, 128)) for part in _empty(7, 12 * 128, dtype=dtype).split((1024, 256, 256), 1))
    pages, plane = _empty(9, 2, 16, 128, dtype=code), _empty(9, 2, 16, dtype=torch.float32)
    ids, scales = _empty(7, dtype=torch.int64), KVScales(plane, plane)
    rope.write_kv(k, v, pages, pages, ids, scales)
    for rotary, keep in ((128, True), (64, False)):
        table = _empty(4096, rotary, dtype=torch.float32)
        rope.rope_write(q, k, v, table, ids, pages, pages, ids, keep=keep, scales=scales)


def _attention(
    traits: DeviceTraits,
    dtype: torch.dtype,
    shape: AttentionShape,
    full: bool,
    page_size: int = 16,
    code: torch.dtype | None = None,
) -> None:
    """`code`: the pages hold 8-bit codes of this type."""
    rows, tokens = 4, 4096
    q = _empty(tokens, shape.q_heads, shape.dim, dtype=dtype)
    out = _empty(tokens, shape.q_heads, shape.v_dim, dtype=dtype)
    lse = _empty(tokens, shape.q_heads, dtype=torch.float32)
    k = _empty(9, shape.kv_heads, page_size, shape.dim, dtype=code or dtype)
    v = _empty(9, shape.kv_heads, page_size, shape.v_dim, dtype=code or dtype)
    plane = _empty(9, shape.kv_heads, page_size, dtype=torch.float32)
    scales = None if code is None else KVScales(plane, plane)
    table = _empty(rows, 512, dtype=torch.int32)
    lengths, positions = _empty(rows + 1, dtype=torch.int32), _empty(tokens, dtype=torch.int64)
    ids = _empty(rows, dtype=torch.int64)
    new = NewTokens(q[:, : shape.kv_heads], q[:, -shape.kv_heads :], _empty(4096, shape.dim, dtype=torch.float32), ids)
    shared = SharedPrefixes(lengths[:rows], lengths, lengths[:rows])
    plain = ((None, None, None), (None, None, lse)) if full else ()
    for tokens_given, prefixes, sums in ((new, shared, None), (new, None, None), *plain):
        work = decode_attention.decode_work(
            shape, dtype, positions, lengths,
            rows=rows, new=tokens_given is not None, counters=lengths, prefixes=prefixes, quantized=code is not None,
        )  # fmt: skip
        decode_attention.decode_attention(q, k, v, table, out, sums, shape, work, positions, tokens_given, scales)
    if traits.tensor_cores:
        for max_q in (4, 64, 2048) if full else (2048,):
            paged_attention.prefill_attention(
                q, k, v, table, lengths, positions, lengths, out, None, shape,
                first_row=0, num_rows=rows, num_tokens=tokens, max_q=max_q, scales=scales,
            )  # fmt: skip
    if dense_attention.dense_supported(shape, dtype, traits):
        dense = dense_attention.gather_pages(k, v, table, lengths, lengths, tokens, 0, dtype=dtype, scales=scales)
        dense_attention.dense_attention(
            q, dense, lengths, positions, lengths, out, None, shape, traits,
            first_row=0, num_rows=rows, num_tokens=tokens,
        )  # fmt: skip


def _rows() -> None:
    wide, table = _empty(8, dtype=torch.int64), _empty(8, 64, dtype=torch.int32)
    narrow, best = _empty(8, dtype=torch.int32), _empty(8, dtype=torch.float32)
    rows.prepare(wide, wide, wide, wide, table, 16, wide, narrow, wide)
    stops, ring, turn = _empty(8, 8, dtype=torch.int64), _empty(64, 8, dtype=torch.int64), _empty(1, dtype=torch.int64)
    rows.advance(wide, best, wide, wide, wide, wide, stops, ring, turn)
    rows.patch(table, _empty(2, 100, dtype=torch.int32))
    guesses, outputs = _empty(2, 40, dtype=torch.int64), _empty(16, 2, 4, dtype=torch.int64)
    two = wide[:2]
    state = checks.CheckRows(wide, two, two, two, two, two, two, guesses, stops[:2], outputs, turn)
    places = checks.Places(wide, wide, wide, narrow)
    checks.spread(state, table, 16, places, wide)
    checks.settle(state, places, wide, best)


def _products(traits: DeviceTraits, dtype: torch.dtype, full: bool) -> None:
    """Products of one and of eight rows; generations that differ in nothing they use are checked with the latter."""
    sizes = ((896, 4864, 1152), (4096, 14336, 6144)) if full else ((896, 4864, 1152),)
    counts = (1, 2, 8, 16) if full else (1, 8) if traits.capability in (75, 90) else (8,)
    for (hidden, inner, merged), few in product(sizes, counts):
        if few > skinny_linear.GEMV_ROWS and not traits.tensor_cores:
            continue
        x, norm = _empty(few, hidden, dtype=dtype), _empty(hidden, dtype=dtype)
        qkv, bias = _empty(merged, hidden, dtype=dtype), _empty(merged, dtype=dtype)
        gate_up, down = _empty(2 * inner, hidden, dtype=dtype), _empty(hidden, inner, dtype=dtype)
        normed = skinny_linear.skinny_linear_add(_empty(few, inner, dtype=dtype), down, None, x, norm)
        squares = None if normed is None else normed.squares
        folded = norm if normed is None else None
        skinny_linear.skinny_linear(x, qkv, bias, norm=folded, squares=squares, eps=1e-6)
        skinny_linear.skinny_linear(x, gate_up, norm=folded, squares=squares, eps=1e-6, act="silu")
        head_argmax.head_argmax(x, _empty(151936, hidden, dtype=dtype))


def _tens_of_rows(dtype: torch.dtype) -> None:
    """Products of some tens of rows, where there are kernels for them, and the norm that adds up what some leave."""
    for hidden, inner, merged, vocabulary in ((896, 4864, 1152, 0), (4096, 14336, 6144, 128256)):
        for count in (32, 64):
            x, qkv = _empty(count, hidden, dtype=dtype), _empty(merged, hidden, dtype=dtype)
            if not linear_wide.suits_wide(count, qkv, x.device):
                continue
            linear_wide.wide_linear(x, qkv, _empty(merged, dtype=dtype))
            linear_wide.wide_linear(x, _empty(2 * inner, hidden, dtype=dtype), gated=True)
            if vocabulary:
                linear_wide.wide_linear(x, _empty(vocabulary, hidden, dtype=dtype), out_dtype=torch.float32)
            linear_wide.wide_linear_parts(_empty(count, inner, dtype=dtype), _empty(hidden, inner, dtype=dtype))
        parts = _empty(4, 64, hidden, dtype=torch.float32)
        linear_parts.add_parts_norm(parts, _empty(64, hidden, dtype=dtype), _empty(hidden, dtype=dtype), 1e-6)


def _coded_products(traits: DeviceTraits, dtype: torch.dtype, full: bool) -> None:
    """Weights in codes; without `full`, one generation gets all of them, each of the others what tells it apart."""
    hidden, inner = 896, 4864
    every = full or traits.capability == 90
    # activations become digits where a scale is that of 128 columns or more
    codes: tuple[str, ...] = ("int4", "int4 by 64", "int8", "int8 words", "e4m3")
    codes = codes if every or traits.capability in (75, 80) else codes[:2]
    counts = (1, 8, 16, 64) if full else (1, 8, 64) if every else (8,) if traits.tensor_cores else (1,)
    for code, few in product(codes, counts):
        if (few > 16 and code != "int4" and not full) or (code == "int8 words" and not traits.tensor_cores):
            continue
        x, norm = _empty(few, hidden, dtype=dtype), _empty(hidden, dtype=dtype)
        gate_up = _coded(code, 2 * inner, hidden, dtype)
        folded = norm if skinny_linear.folds_norm(x, gate_up, True) else None
        skinny_linear.skinny_linear(x, gate_up, norm=folded, act="silu")
        if full or (every and few == 8):
            down = _coded(code, hidden, inner, dtype, zero=True)
            skinny_linear.skinny_linear_add(_empty(few, inner, dtype=dtype), down, None, x, norm)
    _table_products(traits, dtype, full)
    if traits.tensor_cores:
        _wide_products(traits, dtype, full)
    if full or traits.capability in (89, 90):
        _float8_products(traits, dtype)
    if full or traits.capability in (75, 80):
        for few in (1, 8) if traits.tensor_cores else (1,):
            x = _empty(few, hidden, dtype=dtype)
            skinny_linear.skinny_linear(x, _coded("e4m3 by 128", 2 * inner, hidden, dtype), act="silu")
    if every:
        quant_decode.decode(_coded("int4", hidden, inner, dtype), dtype)
        words = _coded("int8 words", hidden, inner, dtype)
        quant_decode.decode(words, dtype)
        for some in (8, 64):  # in the type whose operands are not made in pairs
            skinny_linear.skinny_linear(_empty(some, inner, dtype=torch.float16), words)
        sums, scales = _empty(32, hidden, dtype=torch.int32), _empty(hidden, 1, dtype=torch.float32)
        token_codes.scale_sums(sums, scales[:32], scales, _empty(hidden, dtype=dtype), dtype)
        token_codes.round_tokens(_empty(32, hidden, dtype=dtype), torch.int8)
        if traits.capability >= 89:
            token_codes.round_tokens(_empty(32, hidden, dtype=dtype), torch.float8_e4m3fn)


def _table_products(traits: DeviceTraits, dtype: torch.dtype, full: bool) -> None:
    """4-bit codes that name numbers of a table, with scales of each kind. The instructions are those of all generations
    but for E2M1's in bfloat16, and those of the tables differ in constants, so that few are compiled."""
    outs, size = 6144, 1024
    every = full or traits.capability == 90
    for name in TABLES if every else _TABLES.get(traits.capability, ()):
        group, scale_dtype = _SCALES[name]
        words, scale = _empty(outs, words_of(size), dtype=torch.int16), _empty(outs, size // group, dtype=scale_dtype)
        weight = CodedWeight(name, words, scale, size, group)
        for few in (1, 8, 64) if full else (1, 8) if name in ("nf4", "e2m1") else (1,):
            if few == 1 or traits.tensor_cores:
                skinny_linear.skinny_linear(_empty(few, size, dtype=dtype), weight)
    if every:
        skinny_linear.skinny_linear(_empty(64, size, dtype=dtype), weight)
        scale, outer = _empty(outs, size // 16, dtype=torch.uint8), _empty(outs, 1, dtype=torch.float32)
        nvfp4 = CodedWeight("e2m1", words, scale, size, 16, outer=outer)
        skinny_linear.skinny_linear(_empty(1, size, dtype=dtype), nvfp4)
        quant_decode.decode(nvfp4, dtype)


_TABLES = {75: ("nf4",), 80: ("e2m1",)}
_SCALES = {
    "nf4": (64, torch.float32),
    "fp4": (64, torch.float32),
    "e2m1": (32, torch.uint8),
    "iq4": (32, torch.float16),
}


def _block_products(traits: DeviceTraits, dtype: torch.dtype, full: bool) -> None:
    """GGUF blocks; the rows of a weight that a program takes do not change what is compiled, so there are few."""
    outs, size = 256, 2048 if full else 512
    every = full or traits.capability in (75, 90)
    for kind in KINDS if every else _KINDS.get(traits.capability, ()):
        weight = _blocks(kind, 2 * outs, size)
        for few in (1, 2, 8, 16, 64) if full else (1, 8) if every else (8,):
            if few > 1 and not traits.tensor_cores:
                continue
            x, norm = _empty(few, size, dtype=dtype), _empty(size, dtype=dtype)
            folded = norm if skinny_linear.folds_norm(x, weight, True) else None
            squares = None if folded is not None or few > 16 else _empty(few, 32, dtype=torch.float32)
            act = "silu" if few <= 16 and (full or kind == "Q4_K") else None
            skinny_linear.skinny_linear(x, weight, norm=folded, squares=squares, eps=1e-6, act=act)
            if full:
                skinny_linear.skinny_linear_add(x, weight, None, _empty(few, 2 * outs, dtype=dtype), norm)
        if every:
            gguf_decode.decode_planes(weight, dtype)
    if traits.capability == 90:
        x = _empty(1, 4096, dtype=dtype)  # a row in one turn, as large models have it, and a norm in float32
        skinny_linear.skinny_linear(x, _blocks("Q4_K", 6144, 4096), norm=_empty(4096, dtype=torch.float32), eps=1e-6)
        skinny_linear.skinny_linear(_empty(64, size, dtype=dtype), _blocks("Q4_K", outs, size))


_KINDS = {80: ("Q4_K", "Q6_K"), 100: ("Q6_K",), 120: ("Q4_K",)}  # what unpacks them is the same everywhere


def _blocks(kind: str, outs: int, size: int) -> BlockWeight:
    blocks, unit = size // 128, KINDS[kind].unit
    codes = _empty(outs, size, dtype=torch.int8) if kind == "Q8_0" else _empty(outs, blocks * 32, dtype=torch.int16)
    form = KINDS[kind]
    scale_dtype = torch.float16 if not unit else torch.uint8 if form.minimum else torch.int8
    scale = _empty(outs, blocks * 128 // form.group * (2 if form.minimum else 1), dtype=scale_dtype)
    high = _empty(outs, blocks * 8 * form.high, dtype=torch.int16) if form.high else None
    units = _empty(outs, size // unit * (2 if form.minimum else 1), dtype=torch.float16) if unit else None
    return BlockWeight(kind, codes, scale, size, form.group, high=high, unit=units)


def _wide_products(traits: DeviceTraits, dtype: torch.dtype, full: bool) -> None:
    """Products of some tens of rows by codes in words, of a large model, whose tiles take the most shared memory."""
    hidden, inner = 4096, 14336
    codes = ("int4", "int8 words") if full or traits.capability in (80, 90) else _WIDE[traits.capability]
    for code, some in product(codes, (32, 64) if full else (64,)):
        x, norm = _empty(some, hidden, dtype=dtype), _empty(hidden, dtype=dtype)
        gate_up, down = _coded(code, 2 * inner, hidden, dtype), _coded(code, hidden, inner, dtype)
        squares = _empty(some, 32, dtype=torch.float32)
        skinny_linear.skinny_linear(x, gate_up, squares=squares, eps=1e-6, act="silu")
        skinny_linear.skinny_linear_add(_empty(some, inner, dtype=dtype), down, None, x, norm)
        if full:
            head_argmax.head_argmax(x, gate_up)


def _float8_products(traits: DeviceTraits, dtype: torch.dtype) -> None:
    """E4M3 weights of a large model by kernels of their own, and the norm whose rows are rounded to E4M3."""
    hidden, inner = 4096, 14336
    gate_up, down = _coded("e4m3", 2 * inner, hidden, dtype), _coded("e4m3", hidden, inner, dtype)
    blocks = _coded("e4m3 by 128", 2 * inner, hidden, dtype)
    for few in (1, 8):
        if suits_float8(few, inner, hidden, True, traits):
            skinny_linear.skinny_linear(_empty(few, hidden, dtype=dtype), blocks, act="silu")
    for few in (1, 2, 16, 64):
        if suits_float8(few, inner, hidden, True, traits):
            x, norm = _empty(few, hidden, dtype=dtype), _empty(hidden, dtype=dtype)
            normed = skinny_linear.skinny_linear_add(_empty(few, inner, dtype=dtype), down, None, x, norm)
            folded, squares = (norm, None) if normed is None else (None, normed.squares)
            skinny_linear.skinny_linear(x, gate_up, norm=folded, squares=squares, eps=1e-6, act="silu")
    x = _empty(32, hidden, dtype=dtype)
    token_norm.norm_tokens(x, x, _empty(hidden, dtype=dtype), 1e-6, torch.float8_e4m3fn)


_WIDE = {86: ("int4",), 89: ("int8 words",), 100: ("int4",), 120: ("int8 words",)}  # the others' passes are alike


def _coded(code: str, outs: int, size: int, dtype: torch.dtype, zero: bool = False) -> CodedWeight:
    """In int4 with zero points or with shifts, and groups of 128 or of 64."""
    if code == "int8 words":
        words = _empty(outs, words_of(size) * 2, dtype=torch.int16)
        return CodedWeight("int8", words, _empty(outs, 1, dtype=torch.float32), size, size)
    if code == "e4m3 by 128":
        scale = _empty(outs, size // 128, dtype=torch.float32)
        return CodedWeight("e4m3", _empty(outs, size, dtype=torch.uint8), scale, size, 128)
    if not code.startswith("int4"):
        codes = _empty(outs, size, dtype=torch.int8 if code == "int8" else torch.uint8)
        return CodedWeight(code, codes, _empty(outs, 1, dtype=torch.float32), size, size)
    group = 64 if code == "int4 by 64" else 128
    words, scale = _empty(outs, words_of(size), dtype=torch.int16), _empty(outs, -(-size // group), dtype=dtype)
    if not zero:
        return CodedWeight("int4", words, scale, size, group, shift=scale)
    return CodedWeight("int4", words, scale, size, group, zero=_empty(*scale.shape, dtype=torch.uint8))


def _sampling() -> None:
    scores = _empty(4, 128256, dtype=torch.float32)
    sampling.argmax(scores)
    row = _empty(4, dtype=torch.float32)
    sampling.draw(scores, row, row, row, _empty(4, 2, dtype=torch.int64), _empty(4, dtype=torch.int64))
    sampling_bounds.bounds(scores, row, row, row, _empty(4, dtype=torch.int64), row)


def _empty(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
