"""Decode attention with new tokens and shared prefixes, and attention over dense keys, on a real GPU."""

import pytest
import torch
from decode_cases import attend_decode, hide_prefixes, share_prefixes, with_new_tokens
from kernel_cases import PagedBatch, assert_as_good_as_torch, layout_of, paged_batch

from octavo.engine.attention.base import AttentionStep, AttnSpec, CacheGroup, LayerKV, Plane
from octavo.engine.attention.torch_backend import TorchBackend
from octavo.engine.attention.triton_backend import TritonBackend
from octavo.engine.model.ops import TextbookOps
from octavo.engine.model.ops_triton import TritonOps
from octavo.kernels import dense_attention
from octavo.kernels.paged_attention import AttentionShape

PAGE = 16
LAYER_8B = AttentionShape(32, 8, 128, 128, 128**-0.5)
LAYER_HALF_B = AttentionShape(14, 2, 64, 64, 64**-0.5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("shape", "rotary", "norm"),
    [
        (LAYER_8B, 128, False),
        (LAYER_HALF_B, 64, False),
        (AttentionShape(16, 8, 128, 128, 0.088, window=300), 128, True),
        (AttentionShape(8, 4, 256, 256, 0.0625, softcap=50.0), 256, False),
        (AttentionShape(32, 32, 96, 96, 0.1), 48, False),
    ],
)
def test_the_newest_token_is_rotated_attended_and_stored_in_the_same_launch(shape, rotary, norm, dtype):
    lengths = [0, 1, 2, 16, 17, 64, 65, 700, 2100, 5000]
    batch = paged_batch([(length, 1) for length in lengths], shape, 16, dtype, "cuda")
    new, written = with_new_tokens(batch, shape, rotary, norm)
    exact, exact_lse = written.reference(shape)
    torchs, _ = written.reference(shape, dtype)
    before = batch.k_pages.clone(), batch.v_pages.clone()
    for programs in (1, None, 5000):
        batch.k_pages, batch.v_pages = (plane.clone() for plane in before)
        out, lse = attend_decode(batch, shape, programs, new)
        assert_as_good_as_torch(out, torchs, exact, factor=2.0 if dtype != torch.float32 else 4.0)
        assert torch.equal(lse.isneginf(), exact_lse.isneginf())
        assert torch.equal(batch.v_pages[1:].nan_to_num(), written.v_pages[1:].nan_to_num())
        assert torch.equal(batch.k_pages.isnan()[1:], written.k_pages.isnan()[1:])
        torch.testing.assert_close(batch.k_pages[1:], written.k_pages[1:], equal_nan=True)


def test_the_same_step_gives_the_same_bits_every_time():
    """Whichever program comes last, it weighs the runs in the order of the keys."""
    batch = paged_batch([(9000, 1), (333, 1), (4100, 1)], LAYER_8B, 16, torch.bfloat16, "cuda")
    first = attend_decode(batch, LAYER_8B)
    for _ in range(50):
        again = attend_decode(batch, LAYER_8B)
        assert torch.equal(first[0], again[0])
        assert torch.equal(first[1], again[1])


@pytest.mark.parametrize("shape", [LAYER_8B, LAYER_HALF_B, AttentionShape(16, 16, 128, 128, 0.088, softcap=20.0)])
def test_pages_that_rows_share_are_read_once_for_all_of_them(shape):
    rows = (
        [(2048 + 16 + row, 1) for row in range(64)] + [(0, 1), (5, 1), (3000, 1)] + [(600 + row, 1) for row in range(5)]
    )
    batch = paged_batch(rows, shape, 16, torch.bfloat16, "cuda")
    spans = [(list(range(63, -1, -1)), 2048), ([69, 67, 68, 71], 592)]
    prefixes = share_prefixes(batch, spans, capacity=8)
    new, written = with_new_tokens(batch, shape, shape.dim, False)
    exact, _ = written.reference(shape)
    torchs, _ = written.reference(shape, torch.bfloat16)
    hide_prefixes(batch, prefixes)
    before = batch.k_pages.clone(), batch.v_pages.clone()
    for programs in (1, None, 4000):
        batch.k_pages, batch.v_pages = (plane.clone() for plane in before)
        out, _ = attend_decode(batch, shape, programs, new, prefixes)
        assert_as_good_as_torch(out, torchs, exact)


@pytest.mark.parametrize("shape", [LAYER_8B, LAYER_HALF_B, AttentionShape(8, 8, 64, 64, 0.125)])
@pytest.mark.parametrize("rows", [[(2048, 2048), (700, 700), (64, 64)], [(700, 1), (3000, 1000), (900, 900), (33, 17)]])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_long_pieces_are_attended_over_dense_keys(shape, rows, dtype, monkeypatch):
    spec = AttnSpec(shape.q_heads, shape.kv_heads, shape.dim, shape.dim, shape.scale)
    planes = (Plane("k", shape.kv_heads, shape.dim), Plane("v", shape.kv_heads, shape.dim))
    batch = paged_batch(rows, shape, PAGE, dtype, "cuda")
    qkv = torch.randn(batch.q.shape[0], shape.q_heads + 2 * shape.kv_heads, shape.dim, device="cuda").to(dtype)
    angles = torch.rand(4096, shape.dim // 2, device="cuda") * 6
    table = torch.cat((angles.cos(), angles.sin()), 1)
    launched = []
    original = dense_attention.dense_attention
    monkeypatch.setattr(
        dense_attention, "dense_attention", lambda *args, **more: (launched.append(1), original(*args, **more))
    )
    results = []
    for ops, backend in ((TextbookOps(), TorchBackend()), (TritonOps(), TritonBackend())):
        layer = LayerKV(batch.k_pages.clone(), batch.v_pages.clone(), 0)
        step = AttentionStep(backend, backend.plan(layout_of(batch, PAGE), [CacheGroup("all", (0,), planes)]), [layer])
        results.append(ops.rope_attend(qkv.clone(), None, None, 0.0, table, step.layout.q_pos, step, 0, spec))
        written = layer
    assert launched == [1]
    queries = TextbookOps().rope_write(
        *qkv.split((shape.q_heads, shape.kv_heads, shape.kv_heads), 1), table, batch.q_pos, step, 0
    )  # fmt: skip
    whole = PagedBatch(
        queries, written.k, written.v, batch.table, batch.q_start, batch.q_pos, batch.kv_len,
        batch.decode_rows, batch.q_lens, batch.kv_lens,
    )  # fmt: skip
    assert_as_good_as_torch(results[1], results[0], whole.reference(shape)[0])
