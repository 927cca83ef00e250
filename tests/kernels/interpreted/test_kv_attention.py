"""Attention kernels over pages of 8-bit codes: against attention by the book over what the codes stand for."""

import pytest
import torch
from decode_cases import attend_decode, hide_prefixes, share_prefixes, with_new_tokens
from kernel_cases import assert_as_good_as_torch, layout_of, paged_batch

from octavo.engine.attention import triton_backend
from octavo.engine.attention.base import AttentionStep, AttnSpec, CacheGroup, LayerKV, Plane
from octavo.engine.attention.torch_backend import TorchBackend
from octavo.engine.attention.triton_backend import TritonBackend
from octavo.engine.model.ops import TextbookOps
from octavo.engine.model.ops_triton import TritonOps
from octavo.kernels import dense_attention
from octavo.kernels.device import DeviceTraits, as_device
from octavo.kernels.kv_format import as_bytes
from octavo.kernels.paged_attention import AttentionShape, prefill_attention

PAGE = 16
FORMATS = [torch.int8, torch.float8_e4m3fn]
TURING = DeviceTraits(capability=75, multiprocessors=4, shared_bytes=65536)
both_formats = pytest.mark.parametrize("code", FORMATS)


def shape_of(heads: tuple[int, int], dim: int, **more: object) -> AttentionShape:
    return AttentionShape(*heads, dim, dim, dim**-0.5, **more)


def assert_same_cache(found: LayerKV, wanted: LayerKV) -> None:
    """Codes and scales are equal, but that a rotated channel may fall either way where it stands between two codes."""
    for ours, theirs in ((found.k, wanted.k), (found.v, wanted.v)):
        apart = (ours[1:].float() - theirs[1:].float()).abs()
        assert (apart > 0).float().mean() < 2e-3
        assert (apart <= torch.maximum(theirs[1:].float().abs() / 8, torch.tensor(1.0))).all()
    for ours, theirs in ((found.scales.k, wanted.scales.k), (found.scales.v, wanted.scales.v)):
        torch.testing.assert_close(ours[1:], theirs[1:], rtol=2e-3, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("shape", "rotary", "norm", "dtype", "code"),
    [
        (shape_of((3, 1), 64), 64, False, torch.float16, torch.int8),
        (shape_of((4, 2), 64), 64, False, torch.float16, torch.float8_e4m3fn),
        (shape_of((2, 2), 80), 32, True, torch.float32, torch.int8),
        (shape_of((2, 1), 80), 32, True, torch.float32, torch.float8_e4m3fn),
        (shape_of((3, 1), 32, window=24), 32, True, torch.float16, torch.int8),
        (shape_of((33, 1), 16), 16, False, torch.float16, torch.float8_e4m3fn),
        (shape_of((2, 1), 32, softcap=5.0), 32, False, torch.float32, torch.int8),
    ],
)
def test_the_newest_token_is_rounded_before_it_is_attended_and_stored(shape, rotary, norm, dtype, code):
    batch = paged_batch([(0, 1), (1, 1), (17, 1), (100, 1), (64, 1)], shape, PAGE, dtype).quantized(code)
    new, written = with_new_tokens(batch, shape, rotary, norm)
    exact, exact_lse = written.reference(shape)
    torchs, _ = written.reference(shape, dtype)
    before = batch.cache()
    for programs in (1, 12):
        batch.use(before)
        out, lse = attend_decode(batch, shape, programs, new)
        assert_as_good_as_torch(out, torchs, exact, factor=3.0 if dtype == torch.float16 else 6.0)
        torch.testing.assert_close(lse.double(), exact_lse, rtol=5e-3, atol=5e-3)
        assert_same_cache(batch.cache(), written.cache())


@both_formats
def test_pages_that_rows_share_are_read_once_for_all_of_them(code):
    shape = shape_of((3, 1), 32)
    rows = [(170, 1), (0, 1), (150, 1), (40, 1), (131, 1), (70, 1), (67, 1)]
    batch = paged_batch(rows, shape, PAGE, torch.float16).quantized(code)
    prefixes = share_prefixes(batch, [([4, 0, 2], 128), ([5, 6], 64)], capacity=4)
    exact, exact_lse = batch.reference(shape)
    torchs, _ = batch.reference(shape, torch.float16)
    hide_prefixes(batch, prefixes)
    for programs in (1, 16):
        out, lse = attend_decode(batch, shape, programs, prefixes=prefixes)
        assert_as_good_as_torch(out, torchs, exact)
        torch.testing.assert_close(lse.double(), exact_lse, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize(
    ("shape", "page_size", "dtype", "code"),
    [
        (shape_of((3, 1), 64), 16, torch.float16, torch.int8),
        (shape_of((4, 2), 64), 16, torch.float16, torch.float8_e4m3fn),
        (shape_of((2, 1), 80, window=40), 8, torch.float16, torch.int8),
        (shape_of((2, 1), 16), 512, torch.float32, torch.float8_e4m3fn),
        (shape_of((2, 1), 16), 512, torch.float32, torch.int8),
        (shape_of((2, 2), 32, softcap=8.0), 64, torch.float16, torch.float8_e4m3fn),
    ],
)
def test_pieces_of_prompts_are_attended_over_pages(shape, page_size, dtype, code):
    batch = paged_batch([(70, 70), (150, 33), (5, 5), (129, 2)], shape, page_size, dtype).quantized(code)
    exact, exact_lse = batch.reference(shape)
    torchs, _ = batch.reference(shape, dtype)
    out, lse = batch.poisoned_output(shape)
    prefill_attention(
        batch.q, batch.k_pages, batch.v_pages, batch.table, batch.q_start, batch.q_pos, batch.kv_len, out, lse, shape,
        first_row=0, num_rows=4, num_tokens=len(batch.q), max_q=70, scales=batch.scales,
    )  # fmt: skip
    assert_as_good_as_torch(out, torchs, exact, factor=3.0)
    torch.testing.assert_close(lse.double(), exact_lse, rtol=5e-3, atol=5e-3)


def run_step(ops, backend, batch, qkv, weights, table, spec) -> tuple[torch.Tensor, LayerKV]:
    groups = [CacheGroup("all", (0,), (Plane("k", spec.kv_heads, spec.qk_dim), Plane("v", spec.kv_heads, spec.v_dim)))]
    layer = batch.cache()
    step = AttentionStep(backend, backend.plan(layout_of(batch, PAGE), groups), [layer])
    return ops.rope_attend(qkv.clone(), *weights, 1e-6, table, step.layout.q_pos, step, 0, spec), layer


@pytest.mark.parametrize(
    ("traits", "norm", "code"),
    [(None, True, torch.float8_e4m3fn), (None, False, torch.int8), (TURING, False, torch.int8)],
)
def test_a_projection_is_rotated_written_and_attended_as_by_the_textbook(norm, traits, code):
    """Decode rows, a fresh piece and one with a past in a step; also where longer pieces go to plain torch."""
    shape, spec = shape_of((4, 2), 32), AttnSpec(4, 2, 32, 32, 32**-0.5)
    batch = paged_batch([(40, 1), (50, 20), (90, 1), (5, 5)], shape, PAGE, torch.float32).quantized(code)
    qkv = torch.randn(batch.q.shape[0], 8, 32)
    angles = torch.rand(512, 16)
    table = torch.cat((angles.cos(), angles.sin()), 1)
    weights = torch.rand(2, 32).unbind() if norm else (None, None)
    wanted, cache = run_step(TextbookOps(), TorchBackend(), batch, qkv, weights, table, spec)
    with as_device(traits or DeviceTraits(90, 4, 232448)):
        out, written = run_step(TritonOps(), TritonBackend(), batch, qkv, weights, table, spec)
    assert_same_cache(written, cache)
    torch.testing.assert_close(out, wanted, rtol=1e-2, atol=1e-2)  # a channel between two codes moves the result


@pytest.mark.parametrize(("cached", "code"), [(0, torch.float8_e4m3fn), (50, torch.int8)])
def test_long_pieces_are_attended_over_dense_numbers_that_equal_the_pages(cached, code, monkeypatch):
    shape, spec = AttentionShape(4, 2, 64, 64, 0.125), AttnSpec(4, 2, 64, 64, 0.125)
    monkeypatch.setattr(triton_backend, "DENSE_READS", 20)
    batch = paged_batch([(40, 1), (25 + cached, 25), (21, 21)], shape, PAGE, torch.float16).quantized(code)
    qkv = torch.randn(batch.q.shape[0], 8, 64).half()
    angles = torch.rand(512, 32)
    table = torch.cat((angles.cos(), angles.sin()), 1)
    launched = []
    original = dense_attention.dense_attention
    monkeypatch.setattr(
        dense_attention, "dense_attention", lambda *args, **more: (launched.append(args[1]), original(*args, **more))
    )
    wanted, _ = run_step(TextbookOps(), TorchBackend(), batch, qkv, (None, None), table, spec)
    out, written = run_step(TritonOps(), TritonBackend(), batch, qkv, (None, None), table, spec)
    torch.testing.assert_close(out, wanted, rtol=1e-2, atol=5e-3)
    (lines,) = launched
    k, v = (plane.half() for plane in written.values())
    for row, (new, length) in enumerate(zip(batch.q_lens, batch.kv_lens)):
        if new == 1:
            continue
        at = torch.arange(length)
        pages = batch.table[row].long()[at // PAGE]
        begin = int(lines.starts[row])
        found = lines.lines[begin : begin + length]
        for plane, column in ((k, lines.k_column), (v, lines.v_column)):
            there = found[:, column : column + 2 * 64].view(length, 2, 64)
            assert torch.equal(there, plane[pages, :, at % PAGE])


def test_a_number_that_is_not_finite_stays_in_its_own_row():
    shape = shape_of((2, 2), 32)
    for code in FORMATS:
        batch = paged_batch([(40, 1), (40, 1), (9, 1)], shape, PAGE, torch.float16).quantized(code)
        new, _ = with_new_tokens(batch, shape, 32, False)
        new.k[1, 0, 3] = float("nan")
        out, _ = attend_decode(batch, shape, new=new)
        assert out[1, 0].isnan().all()
        assert out[1, 1].isfinite().all()
        assert out[[0, 2]].isfinite().all()


def test_codes_of_slots_that_hold_nothing_yet_are_never_read():
    """Whatever lies in the unused end of a page, its scale is not a number here, and results are finite."""
    shape = shape_of((2, 1), 32)
    batch = paged_batch([(17, 1), (33, 1)], shape, PAGE, torch.float16).quantized(torch.int8)
    assert batch.scales.k.isnan().any()
    assert as_bytes(batch.k_pages).any()
    out, lse = attend_decode(batch, shape)
    assert out.isfinite().all()
    assert lse.isfinite().all()
