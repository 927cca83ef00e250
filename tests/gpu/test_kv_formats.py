"""8-bit keys and values on a real GPU: written, read by every attention kernel, and through a whole engine."""

from dataclasses import replace

import pytest
import torch
from decode_cases import attend_decode, hide_prefixes, share_prefixes, with_new_tokens
from kernel_cases import assert_as_good_as_torch, layout_of, paged_batch

from octavo.engine.attention.base import AttentionStep, AttnSpec, CacheGroup, LayerKV, Plane
from octavo.engine.attention.torch_backend import TorchBackend
from octavo.engine.attention.triton_backend import TritonBackend
from octavo.engine.config import EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.model.ops import TextbookOps
from octavo.engine.model.ops_triton import TritonOps
from octavo.engine.request import SamplingParams
from octavo.kernels import dense_attention, rope
from octavo.kernels.kv_format import KVScales, as_bytes, quantize
from octavo.kernels.paged_attention import AttentionShape, prefill_attention

PAGE = 16
FORMATS = [torch.int8, torch.float8_e4m3fn]
LAYER_8B = AttentionShape(32, 8, 128, 128, 128**-0.5)
LAYER_HALF_B = AttentionShape(14, 2, 64, 64, 64**-0.5)
both_formats = pytest.mark.parametrize("code", FORMATS)


def assert_same_cache(found: LayerKV, wanted: LayerKV) -> None:
    """Equal, but that a rotated channel may fall either way where it stands between two codes."""
    for ours, theirs in ((found.k, wanted.k), (found.v, wanted.v)):
        apart = (ours[1:].float() - theirs[1:].float()).abs()
        assert (apart > 0).float().mean() < 2e-3
        assert (apart <= (theirs[1:].float().abs() / 8).clamp(min=1.0)).all()
    for ours, theirs in ((found.scales.k, wanted.scales.k), (found.scales.v, wanted.scales.v)):
        ours, theirs = ours[1:], theirs[1:]
        assert torch.equal(ours.isnan(), theirs.isnan())
        ratio = (ours / theirs)[~ours.isnan()]
        assert ((ratio - 1).abs() > 4e-3).float().mean() < 1e-3  # a peak rounded the other way moves a power of two


@both_formats
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_written_heads_have_the_codes_of_plain_torch(dtype, code):
    sizes = torch.logspace(-3, 3, 500, device="cuda")[:, None, None]
    k, v = ((torch.randn(500, 8, 128, device="cuda") * sizes).to(dtype) for _ in "kv")
    k[7, 3], v[9, 1, 5], v[11, 0, 0] = 0, float("nan"), float("inf")
    slots = torch.randperm(512, device="cuda")[:500]
    pages = [torch.zeros(33, 8, PAGE, 128, dtype=code, device="cuda") for _ in "kv"]
    planes = [torch.zeros(33, 8, PAGE, device="cuda") for _ in "kv"]
    rope.write_kv(k, v, *pages, slots, KVScales(*planes))
    for new, page, plane in zip((k, v), pages, planes):
        wanted, scales = quantize(new, code)
        at = slots // PAGE, slice(None), slots % PAGE
        torch.testing.assert_close(plane[at], scales, rtol=0, atol=0, equal_nan=True)
        finite = scales.isfinite()
        assert torch.equal(as_bytes(page)[at][finite], as_bytes(wanted)[finite])


@both_formats
@pytest.mark.parametrize(
    ("shape", "rotary", "norm", "dtype"),
    [
        (LAYER_8B, 128, False, torch.bfloat16),
        (LAYER_8B, 128, False, torch.float32),
        (LAYER_HALF_B, 64, False, torch.float16),
        (AttentionShape(16, 8, 128, 128, 0.088, window=300), 128, True, torch.bfloat16),
        (AttentionShape(8, 4, 256, 256, 0.0625, softcap=50.0), 256, False, torch.bfloat16),
        (AttentionShape(32, 32, 96, 96, 0.1), 48, False, torch.float16),
    ],
)
def test_the_newest_token_is_rounded_before_it_is_attended_and_stored(shape, rotary, norm, dtype, code):
    lengths = [0, 1, 2, 16, 17, 64, 65, 700, 2100, 5000]
    batch = paged_batch([(length, 1) for length in lengths], shape, PAGE, dtype, "cuda").quantized(code)
    new, written = with_new_tokens(batch, shape, rotary, norm)
    exact, exact_lse = written.reference(shape)
    torchs, _ = written.reference(shape, torch.bfloat16 if dtype == torch.float16 else dtype)
    before = batch.cache()
    for programs in (1, None, 5000):
        batch.use(before)
        out, lse = attend_decode(batch, shape, programs, new)
        assert_as_good_as_torch(out, torchs, exact, factor=3.0 if dtype != torch.float32 else 100.0)
        assert torch.equal(lse.isneginf(), exact_lse.isneginf())
        assert_same_cache(batch.cache(), written.cache())


@both_formats
def test_small_codes_and_large_scales_lose_nothing_on_the_way_to_the_dots(code):
    """Heads with one large channel: the others become the smallest codes, E4M3's subnormal ones among them."""
    shape = LAYER_8B
    batch = paged_batch([(900, 1), (65, 1)], shape, PAGE, torch.bfloat16, "cuda")
    loud = torch.randint(0, 128, batch.k_pages.shape[:3], device="cuda")[..., None]
    for plane, size in ((batch.k_pages, 3e4), (batch.v_pages, 60.0)):
        plane.scatter_(3, loud, plane.gather(3, loud) * 0 + size)
    batch.q *= 1e-3
    batch = batch.quantized(code)
    assert (batch.k_pages.float().abs() < 2**-6).float().mean() > 0.3 or code == torch.int8
    exact, _ = batch.reference(shape)
    out, _ = attend_decode(batch, shape)
    assert_as_good_as_torch(out, batch.reference(shape, torch.bfloat16)[0], exact)


@both_formats
def test_the_same_step_gives_the_same_bits_every_time(code):
    batch = paged_batch([(9000, 1), (333, 1), (4100, 1)], LAYER_8B, PAGE, torch.bfloat16, "cuda").quantized(code)
    first = attend_decode(batch, LAYER_8B)
    for _ in range(20):
        again = attend_decode(batch, LAYER_8B)
        assert torch.equal(first[0], again[0])
        assert torch.equal(first[1], again[1])


@both_formats
@pytest.mark.parametrize("shape", [LAYER_8B, LAYER_HALF_B, AttentionShape(16, 16, 128, 128, 0.088, softcap=20.0)])
def test_pages_that_rows_share_are_read_once_for_all_of_them(shape, code):
    rows = (
        [(2048 + 16 + row, 1) for row in range(64)] + [(0, 1), (5, 1), (3000, 1)] + [(600 + row, 1) for row in range(5)]
    )
    batch = paged_batch(rows, shape, PAGE, torch.bfloat16, "cuda").quantized(code)
    prefixes = share_prefixes(batch, [(list(range(63, -1, -1)), 2048), ([69, 67, 68, 71], 592)], capacity=8)
    new, written = with_new_tokens(batch, shape, shape.dim, False)
    exact, _ = written.reference(shape)
    torchs, _ = written.reference(shape, torch.bfloat16)
    hide_prefixes(batch, prefixes)
    before = batch.cache()
    for programs in (1, None, 4000):
        batch.use(before)
        out, _ = attend_decode(batch, shape, programs, new, prefixes)
        assert_as_good_as_torch(out, torchs, exact)


@both_formats
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        (LAYER_8B, torch.bfloat16),
        (LAYER_HALF_B, torch.float16),
        (LAYER_HALF_B, torch.float32),
        (AttentionShape(8, 4, 256, 256, 0.06, softcap=50.0), torch.bfloat16),
        (AttentionShape(4, 4, 80, 80, 0.1, window=99), torch.bfloat16),
    ],
)
def test_pieces_of_prompts_are_attended_over_pages(shape, dtype, code):
    batch = paged_batch([(700, 700), (300, 33), (5, 5), (3000, 129)], shape, PAGE, dtype, "cuda").quantized(code)
    exact, _ = batch.reference(shape)
    torchs, _ = batch.reference(shape, torch.bfloat16 if dtype == torch.float16 else dtype)
    for max_q in (700, 4):
        out, lse = batch.poisoned_output(shape)
        prefill_attention(
            batch.q, batch.k_pages, batch.v_pages, batch.table, batch.q_start, batch.q_pos, batch.kv_len, out, lse,
            shape, first_row=0, num_rows=4, num_tokens=len(batch.q), max_q=max_q, scales=batch.scales,
        )  # fmt: skip
        assert_as_good_as_torch(out, torchs, exact, factor=3.0 if dtype != torch.float32 else 100.0)


@both_formats
@pytest.mark.parametrize("rows", [[(2048, 2048), (700, 700), (64, 64)], [(700, 1), (3000, 1000), (900, 900), (33, 17)]])
def test_long_pieces_are_attended_over_dense_numbers_that_equal_the_pages(rows, code, monkeypatch):
    shape = LAYER_8B
    spec = AttnSpec(shape.q_heads, shape.kv_heads, shape.dim, shape.dim, shape.scale)
    planes = (Plane("k", shape.kv_heads, shape.dim), Plane("v", shape.kv_heads, shape.dim))
    batch = paged_batch(rows, shape, PAGE, torch.bfloat16, "cuda").quantized(code)
    qkv = torch.randn(batch.q.shape[0], shape.q_heads + 2 * shape.kv_heads, shape.dim, device="cuda").bfloat16()
    angles = torch.rand(4096, shape.dim // 2, device="cuda") * 6
    table = torch.cat((angles.cos(), angles.sin()), 1)
    launched = []
    original = dense_attention.dense_attention
    monkeypatch.setattr(
        dense_attention, "dense_attention", lambda *args, **more: (launched.append(args[1]), original(*args, **more))
    )
    results, caches = [], []
    for ops, backend in ((TextbookOps(), TorchBackend()), (TritonOps(), TritonBackend())):
        layer = batch.cache()
        step = AttentionStep(backend, backend.plan(layout_of(batch, PAGE), [CacheGroup("all", (0,), planes)]), [layer])
        results.append(ops.rope_attend(qkv.clone(), None, None, 0.0, table, step.layout.q_pos, step, 0, spec))
        caches.append(layer)
    (lines,) = launched
    assert_same_cache(caches[1], caches[0])
    k, v = (plane.bfloat16() for plane in caches[1].values())
    for row, (new, length) in enumerate(zip(batch.q_lens, batch.kv_lens)):
        if new == 1:
            continue
        at = torch.arange(length, device="cuda")
        pages, begin = batch.table[row].long()[at // PAGE], int(lines.starts[row])
        for plane, column in ((k, lines.k_column), (v, lines.v_column)):
            there = lines.lines[begin : begin + length, column : column + shape.kv_heads * shape.dim]
            assert torch.equal(there.reshape(length, shape.kv_heads, -1), plane[pages, :, at % PAGE])
    difference = (results[1].float() - results[0].float()).norm() / results[0].float().norm()
    assert difference < 0.02


CONFIG = EngineConfig(device="cuda", context_length=1024, kv_memory_bytes=1 << 30, max_running=16)
GREEDY = SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True, logprobs=0)
PROMPTS = [[(7 * at + 13 * row) % 5000 + 3 for at in range(100 + 60 * row)] for row in range(8)]


@pytest.mark.parametrize(("dtype", "near"), [("float32", 0.02), ("bfloat16", 0.15)])
@pytest.mark.parametrize("kv", ["int8", "fp8"])
def test_where_an_engine_says_something_else_in_company_both_choices_scored_alike(kv, dtype, near):
    engine = Engine.load("shape:qwen-0.5b", replace(CONFIG, kv_cache_dtype=kv, dtype=dtype))
    try:
        alone = [engine.submit(prompt, GREEDY).result() for prompt in PROMPTS]
        for _ in range(2):  # the second time from cached pages
            handles = [engine.submit(prompt, GREEDY) for prompt in PROMPTS]
            for first, handle in zip(alone, handles):
                again = handle.result()
                assert len(again.token_ids) == 48
                for mine, other, score, beside in zip(
                    first.token_ids, again.token_ids, first.logprobs, again.logprobs, strict=True
                ):
                    assert abs(score.logprob - beside.logprob) < near
                    if mine != other:
                        break
        assert engine.info.kv_dtype == kv
        assert engine.status().settings["attention_backend"] == "triton"
    finally:
        engine.close()
        torch.cuda.empty_cache()
