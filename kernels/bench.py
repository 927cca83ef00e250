"""Times the kernels on this machine's GPU at the shapes of an 8B and a 0.5B model: `python -m octavo.kernels.bench`.

Every figure is the median over replays of one CUDA graph that holds several launches, each on its own buffers, so that
neither launch gaps nor the L2 cache flatter it. GB/s counts each byte that must move once; TFLOP/s counts the causal
half of the score matrix only.
"""

from __future__ import annotations

import argparse
import datetime
import math
import platform
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor

from octavo.kernels import (
    activation,
    decode_attention,
    dense_attention,
    gguf_decode,
    head_argmax,
    paged_attention,
    quant_decode,
    rms_norm,
    rope,
    sampling,
    skinny_linear,
)
from octavo.kernels.attention_rope import NewTokens
from octavo.kernels.bench_blocks import MIX, chain, random_blocks
from octavo.kernels.code_tables import TABLES
from octavo.kernels.decode_attention import SharedPrefixes
from octavo.kernels.device import device_traits
from octavo.kernels.gguf_weight import KINDS, BlockWeight
from octavo.kernels.kv_format import KVScales, head_bytes, quantize
from octavo.kernels.paged_attention import AttentionShape
from octavo.kernels.quant_weight import CodedWeight, interleave_bytes, words_of

LAYER_8B = AttentionShape(32, 8, 128, 128, 128**-0.5)
LAYER_HALF_B = AttentionShape(14, 2, 64, 64, 64**-0.5)
ROTATED_BYTES = 512 << 20  # buffers rotated through: several times any L2 cache
PAGE_SIZE = 16
CODES = ("int4", *TABLES, "int8", "e4m3", "e4m3-blocks")


def measure(launches: list[Callable[[], object]], replays: int = 20) -> float:
    """Seconds of one launch: all are captured into one graph, and the median replay is divided by their number."""
    for launch in launches[:2]:
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch()
    times = []
    for _ in range(3 + replays):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times[3:]) / len(launches)


def decode_case(
    shape: AttentionShape,
    rows: int,
    context: int,
    dtype: torch.dtype,
    shared: int = 0,
    page_size: int = PAGE_SIZE,
    code: torch.dtype | None = None,
) -> tuple[float, float]:
    """(seconds, GB/s of keys and values) of one layer's rotary, KV write and decode attention over `context` cached
    tokens a row, the first `shared` of them the same pages in all rows; in the pages 8-bit codes if `code`."""
    own, prefix = math.ceil(context / page_size) - shared // page_size, shared // page_size
    per_token = shape.kv_heads * sum(head_bytes(dim, code or dtype) for dim in (shape.dim, shape.v_dim))
    bytes_per_layer = (rows * (context - shared) + shared) * per_token
    layers = max(2, min(64, math.ceil(ROTATED_BYTES / bytes_per_layer)))
    pages = rows * own + prefix + 1
    numbers = torch.randperm(pages - 1, device="cuda").int() + 1
    table = torch.cat((numbers[:prefix].expand(rows, prefix), numbers[prefix:].view(rows, own)), 1).contiguous()
    kv_len = torch.full((rows,), context, dtype=torch.int32, device="cuda")
    q_pos = kv_len.long() - 1
    qkv = torch.randn(rows, shape.q_heads + 2 * shape.kv_heads, shape.dim, device="cuda", dtype=dtype)
    q, k_new, v_new = qkv.split((shape.q_heads, shape.kv_heads, shape.kv_heads), 1)
    angles = torch.randn(context, shape.dim, device="cuda")
    new = NewTokens(k_new, v_new, angles, table[:, -1].long() * page_size + (context - 1) % page_size)
    out = torch.empty(rows, shape.q_heads, shape.v_dim, device="cuda", dtype=dtype)
    rows_32 = torch.arange(rows + 1, device="cuda", dtype=torch.int32)
    prefixes = SharedPrefixes(rows_32[:rows], rows_32[:: max(1, rows)].contiguous(), torch.full_like(kv_len, shared))
    work = decode_attention.decode_work(
        shape, dtype, q_pos, kv_len,
        rows=rows, new=True, prefixes=prefixes if shared else None, quantized=code is not None,
    )  # fmt: skip

    def launch() -> Callable[[], None]:
        k, v = (
            torch.randn(pages, shape.kv_heads, page_size, dim, device="cuda", dtype=dtype)
            for dim in (shape.dim, shape.v_dim)
        )
        scales = None
        if code is not None:
            (k, k_scale), (v, v_scale) = quantize(k, code), quantize(v, code)
            scales = KVScales(k_scale, v_scale)
        return lambda: decode_attention.decode_attention(q, k, v, table, out, None, shape, work, q_pos, new, scales)

    seconds = measure([launch() for _ in range(layers)])
    return seconds, bytes_per_layer / seconds / 1e9


def prefill_case(
    shape: AttentionShape,
    rows: int,
    length: int,
    past: int,
    dtype: torch.dtype,
    dense: bool,
    page_size: int = PAGE_SIZE,
) -> tuple[float, float]:
    """(seconds, TFLOP/s) of one layer's attention of `length` new tokens a row after `past` cached ones, over pages or
    over dense keys and values (the copy out of the pages counted, where there is one)."""
    total = past + length
    per_row = math.ceil(total / page_size)
    pages = rows * per_row + 1
    table = (torch.randperm(pages - 1, device="cuda")[: rows * per_row] + 1).view(rows, per_row).int()
    kv_len = torch.full((rows,), total, dtype=torch.int32, device="cuda")
    starts = torch.arange(rows + 1, device="cuda", dtype=torch.int32)
    q_start = starts * length
    q_pos = torch.arange(past, total, device="cuda").repeat(rows)
    k = torch.randn(pages, shape.kv_heads, page_size, shape.dim, device="cuda", dtype=dtype)
    v = torch.randn(pages, shape.kv_heads, page_size, shape.v_dim, device="cuda", dtype=dtype)
    heads = shape.q_heads + 2 * shape.kv_heads
    qkv = torch.randn(rows * length, heads * shape.dim, device="cuda", dtype=dtype)
    q = torch.randn(rows * length, shape.q_heads, shape.dim, device="cuda", dtype=dtype)
    out = torch.empty(rows * length, shape.q_heads, shape.v_dim, device="cuda", dtype=dtype)
    piece: dict[str, Any] = {"first_row": 0, "num_rows": rows, "num_tokens": rows * length}

    def launch() -> None:
        if not dense:
            paged_attention.prefill_attention(
                q, k, v, table, q_start, q_pos, kv_len, out, None, shape, max_q=length, **piece
            )  # fmt: skip
            return
        if past:
            kv = dense_attention.gather_pages(k, v, table, kv_len, starts * total, rows * total, 0)
        else:
            first = shape.q_heads * shape.dim
            kv = dense_attention.DenseKV(qkv, q_start, first, first + shape.kv_heads * shape.dim)
        dense_attention.dense_attention(
            q, kv, q_start, q_pos, kv_len, out, None, shape, device_traits(q.device), **piece
        )  # fmt: skip

    seconds = measure([launch] * 3, replays=5)
    seen = rows * (length * past + length * (length + 1) // 2)
    return seconds, 2 * shape.q_heads * seen * (shape.dim + shape.v_dim) / seconds / 1e12


def library_prefill(shape: AttentionShape, rows: int, length: int, dtype: torch.dtype) -> tuple[float, float]:
    """The same without a past by torch's own attention over dense keys and values, for comparison."""
    q = torch.randn(rows, shape.q_heads, length, shape.dim, device="cuda", dtype=dtype)
    k, v = (
        torch.randn(rows, shape.kv_heads, length, dim, device="cuda", dtype=dtype).repeat_interleave(shape.group, 1)
        for dim in (shape.dim, shape.v_dim)
    )
    run = torch.nn.functional.scaled_dot_product_attention
    seconds = measure([lambda: run(q, k, v, is_causal=True)] * 3, replays=5)
    seen = rows * (length * (length + 1) // 2)
    return seconds, 2 * shape.q_heads * seen * (shape.dim + shape.v_dim) / seconds / 1e12


def small_cases(
    tokens: int, hidden: int, inner: int, shape: AttentionShape, dtype: torch.dtype
) -> Iterator[tuple[str, float, float]]:
    """(operation, seconds, GB/s) of the operations between matrix products of one layer."""
    size = dtype.itemsize

    def copies(bytes_moved: int) -> range:
        return range(max(4, min(64, ROTATED_BYTES // bytes_moved)))

    def random(*dims: int) -> Tensor:
        return torch.randn(*dims, device="cuda", dtype=dtype)

    weight = random(hidden)
    moved = 4 * tokens * hidden * size
    pairs = [(random(tokens, hidden), random(tokens, hidden)) for _ in copies(moved)]
    seconds = measure([partial(rms_norm.add_rms_norm, x, residual, weight, 1e-6) for x, residual in pairs])
    yield "add + rms_norm", seconds, moved / seconds / 1e9

    heads = shape.q_heads + 2 * shape.kv_heads
    moved = 2 * tokens * heads * shape.dim * size
    projections = [random(tokens, heads * shape.dim) for _ in copies(moved)]
    slots = torch.randperm(max(tokens, PAGE_SIZE), device="cuda")[:tokens]
    pages = math.ceil(tokens / PAGE_SIZE) + 1
    caches = [[random(pages, shape.kv_heads, PAGE_SIZE, shape.dim) for _ in "kv"] for _ in projections]
    table = torch.randn(8192, shape.dim, device="cuda")
    positions = torch.arange(tokens, device="cuda") % 8192
    cut = (shape.q_heads * shape.dim, shape.kv_heads * shape.dim, shape.kv_heads * shape.dim)

    def rotate(projection: Tensor, cache: list[Tensor]) -> Tensor:
        q, k, v = (part.unflatten(1, (-1, shape.dim)) for part in projection.split(cut, 1))
        return rope.rope_write(q, k, v, table, positions, cache[0], cache[1], slots)

    seconds = measure([partial(rotate, *pair) for pair in zip(projections, caches)])
    yield "rope + KV write", seconds, moved / seconds / 1e9
    del projections, caches

    moved = 3 * tokens * inner * size
    merged = [random(tokens, 2 * inner) for _ in copies(moved)]
    seconds = measure([partial(activation.gated, each, "silu") for each in merged])
    yield "silu * up", seconds, moved / seconds / 1e9


def product_cases(
    rows: int, hidden: int, inner: int, merged: int, vocabulary: int, dtype: torch.dtype
) -> Iterator[tuple[str, float, float, float]]:
    """(product, seconds, the library's for the bare product, GB/s of the weights): a layer's products with what stands
    around them, and the choice of the greedy token."""

    def random(*dims: int) -> Tensor:
        return torch.randn(*dims, device="cuda", dtype=dtype) * dims[-1] ** -0.5

    few = rows <= skinny_linear.GEMV_ROWS
    norm, stream = random(hidden), random(rows, hidden)
    squares = None if few else torch.rand(rows, triton.cdiv(hidden, 16), device="cuda")
    run = partial(skinny_linear.skinny_linear, stream, norm=norm if few else None, squares=squares, eps=1e-6)
    add = skinny_linear.skinny_linear_add
    attended, gated = random(rows, hidden), random(rows, inner)
    cases: list[tuple[str, int, Tensor, Callable[[Tensor], object]]] = [
        ("norm + qkv", merged, stream, run),
        ("o + residual", hidden, attended, lambda weight: add(attended, weight, None, stream, norm)),
        ("norm + gate, up", 2 * inner, stream, partial(run, act="silu")),
        ("down + residual", hidden, gated, lambda weight: add(gated, weight, None, stream, norm)),
        ("head + argmax", vocabulary, stream, partial(head_argmax.head_argmax, stream)),
    ]
    for label, outs, x, launch in cases:
        moved = outs * x.shape[1] * dtype.itemsize
        weights = [random(outs, x.shape[1]) for _ in range(max(2, min(64, ROTATED_BYTES // moved)))]
        seconds = measure([partial(launch, weight) for weight in weights])
        library = measure([partial(torch.nn.functional.linear, x, weight) for weight in weights])
        yield label, seconds, library, moved / seconds / 1e9


def random_codes(code: str, outs: int, size: int) -> CodedWeight:
    """A weight [outs, size] in int4 with groups of 128 and shifts, in 8-bit codes with a scale a row (of "e4m3-blocks"
    for 128 columns), in blocks of GGUF, or in codes of a table with the scales of its best known format."""
    if code in KINDS:
        return random_blocks(code, outs, size)
    if code in TABLES:
        group = 64 if code in ("nf4", "fp4") else 32
        words = torch.randint(-32768, 32768, (outs, words_of(size)), dtype=torch.int16, device="cuda")
        scale = torch.rand(outs, -(-size // group), device="cuda") / max(TABLES[code]) * size**-0.5
        if code == "e2m1":
            scale = torch.randint(115, 119, scale.shape, dtype=torch.uint8, device="cuda")  # powers of two less 127
        return CodedWeight(code, words, scale.half() if code == "iq4" else scale, size, group)
    if code == "int4":
        words = torch.randint(-32768, 32768, (outs, words_of(size)), dtype=torch.int16, device="cuda")
        scale = torch.rand(outs, -(-size // 128), device="cuda").bfloat16() * size**-0.5
        return CodedWeight(code, words, scale, size, 128, shift=-7.5 * scale)
    group = 128 if code == "e4m3-blocks" else size
    scale = torch.rand(outs, triton.cdiv(size, group), device="cuda") / 64 * size**-0.5
    codes = torch.randint(-127, 128, (outs, size), dtype=torch.int8, device="cuda")
    if code == "int8":
        return CodedWeight(code, interleave_bytes(codes), scale, size, size)
    return CodedWeight("e4m3", codes.float().to(torch.float8_e4m3fn).view(torch.uint8), scale, size, group)


def coded_cases(
    code: str, rows: int, hidden: int, inner: int, merged: int, dtype: torch.dtype
) -> Iterator[tuple[str, float, float]]:
    """(product, seconds, GB/s of the weights) of a layer's products with weights in codes, with what stands around them
    up to 16 rows, or 64 of codes in words, alone beyond; then decoding gate and up for the library's product."""

    def random(*dims: int) -> Tensor:
        return torch.randn(*dims, device="cuda", dtype=dtype) * dims[-1] ** -0.5

    few = rows <= (skinny_linear.MAX_ROWS_OF_WORDS if code in ("int4", "int8", *TABLES) else skinny_linear.MAX_ROWS)
    stream, attended, gated, norm = random(rows, hidden), random(rows, hidden), random(rows, inner), random(hidden)
    squares = torch.rand(rows, triton.cdiv(hidden, 16), device="cuda")

    def normed(weight: CodedWeight, act: str | None) -> Tensor:
        if not few:
            return skinny_linear.skinny_linear(stream, weight)
        folds = skinny_linear.folds_norm(stream, weight, act is not None)
        folded, given = (norm, None) if folds else (None, squares)
        return skinny_linear.skinny_linear(stream, weight, norm=folded, squares=given, act=act, eps=1e-6)

    def added(x: Tensor, weight: CodedWeight) -> object:
        if not few:
            return skinny_linear.skinny_linear(x, weight)
        return skinny_linear.skinny_linear_add(x, weight, None, stream, norm)

    cases: list[tuple[str, int, int, Callable[[CodedWeight], object]]] = [
        ("qkv", merged, hidden, partial(normed, act=None)),
        ("o", hidden, hidden, partial(added, attended)),
        ("gate, up", 2 * inner, hidden, partial(normed, act="silu")),
        ("down", hidden, inner, partial(added, gated)),
        ("decoding gate, up", 2 * inner, hidden, partial(_decoded, dtype=dtype)),
    ]
    for label, outs, size, launch in cases:
        weights = [random_codes(code, outs, size)]
        moved = weights[0].nbytes
        weights += [random_codes(code, outs, size) for _ in range(max(1, min(63, ROTATED_BYTES // moved)))]
        seconds = measure([partial(launch, weight) for weight in weights])
        yield label, seconds, moved / seconds / 1e9


def _decoded(weight: CodedWeight, dtype: torch.dtype) -> Tensor:
    if isinstance(weight, BlockWeight):
        return gguf_decode.decode_planes(weight, dtype)
    return quant_decode.decode(weight, dtype)


def print_codes(dtype: torch.dtype, codes: list[str]) -> None:
    """A line a code and number of rows, at the shape of an 8B model; then GGUF blocks by whole layers."""
    print(f"\nproducts by codes, one layer of 8B, {dtype}: microseconds (GB/s of the codes), and those of a layer")
    for code in codes:
        if code == MIX:
            continue
        for rows in (1, 2, 8, 16, 64):
            cases = list(coded_cases(code, rows, 4096, 14336, 6144, dtype))
            line = "   ".join(f"{label}: {s * 1e6:.1f} ({g:,.0f})" for label, s, g in cases)
            layer = sum(seconds for _, seconds, _ in cases[:-1])
            print(f"{code:<5} {rows:>2} rows   {line}   layer: {layer * 1e6:.1f}", flush=True)
    print("\n8 layers of these products in their order, without attention: microseconds a layer (GB/s of the blocks)")
    for code in codes:
        for rows in (1, 8, 64) if code in (*KINDS, MIX) else ():
            launch, moved = chain(code, rows, 8, dtype)
            seconds = measure([launch] * 2) / 8
            print(f"{code:<6} {rows:>2} rows   {seconds * 1e6:.1f} ({moved / seconds / 1e9:,.0f})", flush=True)
            head = random_blocks("Q6_K" if code == MIX else code, 128256, 4096)
            hidden = torch.randn(rows, 4096, device="cuda", dtype=dtype)
            if rows <= skinny_linear.MAX_ROWS:
                seconds = measure([partial(head_argmax.head_argmax, hidden, head)] * 4)
                rate = head.nbytes / seconds / 1e9
                print(
                    f"{code:<6} {rows:>2} rows   head and greedy choice: {seconds * 1e6:.1f} ({rate:,.0f})", flush=True
                )


def argmax_case(rows: int, vocabulary: int) -> tuple[float, float]:
    """(seconds, GB/s) of the greedy choice."""
    moved = rows * vocabulary * 4
    count = max(2, min(64, ROTATED_BYTES // moved))
    scores = [torch.randn(rows, vocabulary, device="cuda") for _ in range(count)]
    seconds = measure([partial(sampling.argmax, each) for each in scores])
    return seconds, moved / seconds / 1e9


def head() -> str:
    """Device, versions, date and the copy bandwidth everything else is to be compared with."""
    source = torch.randn(1 << 30, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)
    seconds = measure([lambda: torch.neg(source, out=target)] * 4, replays=10)
    traits = device_traits(source.device)
    return (
        f"{torch.cuda.get_device_name()}, {traits.multiprocessors} multiprocessors, torch {torch.__version__}, "
        f"triton {triton.__version__}, Python {platform.python_version()}, {datetime.date.today().isoformat()}\n"
        f"copy kernel: {2 * source.numel() * 2 / seconds / 1e9:,.0f} GB/s read and written"
    )


def main(arguments: list[str] | None = None) -> int:
    """Prints the tables; 1 without a CUDA GPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16")
    known = (*CODES, *KINDS, MIX)
    parser.add_argument(
        "--codes",
        nargs="?",
        const=",".join(known),
        help=f"only the products with weights in fewer bits, of all kinds or of some: {', '.join(known)}",
    )
    flags = parser.parse_args(arguments)
    if flags.codes and (unknown := set(flags.codes.split(",")) - set(known)):
        parser.error(f"--codes knows {', '.join(known)}, not {', '.join(sorted(unknown))}")
    dtype = getattr(torch, flags.dtype)
    if not torch.cuda.is_available():
        print("This needs a CUDA GPU.", file=sys.stderr)
        return 1
    print(head())
    if flags.codes:
        print_codes(dtype, flags.codes.split(","))
        return 0
    shapes = (("8B", LAYER_8B, 4096, 14336), ("0.5B", LAYER_HALF_B, 896, 4864))

    print(f"\nrotary + KV write + decode attention, one layer, {dtype}, pages of {PAGE_SIZE}: microseconds (GB/s)")
    contexts = (512, 2048, 8192, 32768)
    print("shape  rows " + "".join(f"{context:>18,}" for context in contexts))
    for name, shape, _, _ in shapes:
        for rows in (1, 8, 64):
            cells = (decode_case(shape, rows, context, dtype) for context in contexts)
            print(f"{name:<6} {rows:>4} " + "".join(f"{s * 1e6:>9.1f} ({g:>6,.0f})" for s, g in cells), flush=True)
        seconds, rate = decode_case(shape, 64, 2176, dtype, shared=2048)
        print(f"{name:<6} 64 rows of 2,176 tokens that share 2,048: {seconds * 1e6:.1f} ({rate:,.0f})", flush=True)

    print(f"\nthe same over 8-bit pages: microseconds (GB/s, times as fast as {dtype})")
    for name, shape, _, _ in shapes:
        for rows, context in ((1, 32768), (8, 512), (64, 2176), (8, 32768)):
            plain, _ = decode_case(shape, rows, context, dtype)
            line = f"{name:<6} {rows:>4} x {context:<7,} {plain * 1e6:>9.1f}"
            for label, code in (("fp8", torch.float8_e4m3fn), ("int8", torch.int8)):
                seconds, rate = decode_case(shape, rows, context, dtype, code=code)
                line += f"   {label} {seconds * 1e6:>9.1f} ({rate:>6,.0f}, {plain / seconds:.2f})"
            print(line, flush=True)

    print(f"\nprefill attention, one layer, {dtype}, pages of {PAGE_SIZE}: microseconds (TFLOP/s) paged, then dense")
    for name, shape, _, _ in shapes:
        for rows, length, past in ((1, 2048, 0), (1, 8192, 0), (8, 2048, 0), (1, 2048, 30720), (16, 32, 2048)):
            cases = [prefill_case(shape, rows, length, past, dtype, dense) for dense in (False, True)]
            label = f"{rows} x {length} after {past}"
            line = "".join(f"{s * 1e6:>9.1f} ({r:>5.0f})" for s, r in cases)
            print(f"{name:<6} {label:<24} {line}", flush=True)
        seconds, rate = library_prefill(shape, 1, 8192, dtype)
        print(f"{name:<6} {'1 x 8192 by torch':<24} {seconds * 1e6:>9.1f} ({rate:>5.0f})", flush=True)

    print(f"\nsmall operations, one layer, {dtype}: microseconds (GB/s)")
    for name, shape, hidden, inner in shapes:
        for tokens in (1, 64, 8192):
            parts = small_cases(tokens, hidden, inner, shape, dtype)
            line = "   ".join(f"{label}: {s * 1e6:>7.1f} ({g:>6,.0f})" for label, s, g in parts)
            print(f"{name:<6} {tokens:>5} tokens   {line}", flush=True)

    print(f"\nproducts of few rows, {dtype}: microseconds, those of the library's bare product, (GB/s)")
    for name, _, hidden, inner in shapes:
        merged, vocabulary = (6144, 128256) if name == "8B" else (1152, 151936)
        for rows in (1, 2, 8, 16):
            products = product_cases(rows, hidden, inner, merged, vocabulary, dtype)
            line = "   ".join(f"{label}: {s * 1e6:.1f}, {lib * 1e6:.1f} ({g:,.0f})" for label, s, lib, g in products)
            print(f"{name:<6} {rows:>2} rows   {line}", flush=True)
    for rows in (1, 8, 64):
        seconds, rate = argmax_case(rows, 128256)
        print(f"argmax of {rows} x 128256: {seconds * 1e6:.1f} ({rate:,.0f})", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
