"""Attention over dense keys and values, gathered from pages or left in the merged projection."""

import pytest
import torch
from kernel_cases import NAN, assert_as_good_as_torch, paged_batch

from octavo.kernels.dense_attention import DenseKV, dense_attention, dense_supported, gather_pages
from octavo.kernels.device import NO_DEVICE, DeviceTraits
from octavo.kernels.paged_attention import AttentionShape
from octavo.kernels.rope import rope_write, rope_write_reference

ROWS = [(9, 1), (300, 1), (80, 80), (140, 20), (33, 33), (5, 5), (0, 0)]


@pytest.mark.parametrize(("heads", "dim"), [((4, 2), 64), ((4, 1), 128), ((7, 1), 64)])
def test_pieces_after_cached_tokens_are_as_good_as_torch_and_read_only_what_they_may(heads, dim):
    shape = AttentionShape(*heads, dim, dim, dim**-0.5)
    assert dense_supported(shape, torch.float16, NO_DEVICE)
    batch = paged_batch(ROWS, shape, 16, torch.float16)
    exact, exact_lse = batch.reference(shape)
    torchs, _ = batch.reference(shape, torch.float16)
    first, rows = batch.decode_rows, len(batch.q_lens)
    starts = torch.zeros(rows + 1, dtype=torch.int32)
    starts[first + 1 :] = batch.kv_len[first:].cumsum(0)
    kv = gather_pages(
        batch.k_pages, batch.v_pages, batch.table, batch.kv_len, starts, int(starts[-1]), first
    )  # fmt: skip
    assert not kv.lines.isnan().any()
    out, lse = batch.poisoned_output(shape)
    dense_attention(
        batch.q, kv, batch.q_start, batch.q_pos, batch.kv_len, out, lse, shape, NO_DEVICE,
        first_row=first, num_rows=rows, num_tokens=batch.q.shape[0] - first,
    )  # fmt: skip
    assert out[:first].isnan().all()
    assert_as_good_as_torch(out[first:], torchs[first:], exact[first:])
    torch.testing.assert_close(lse[first:].double(), exact_lse[first:], rtol=5e-3, atol=5e-3)


def test_fresh_pieces_are_read_from_the_projection_and_a_broken_neighbour_stays_alone():
    shape = AttentionShape(2, 2, 64, 64, 0.125)
    lengths = [130, 70, 5]
    tokens = sum(lengths)
    batch = paged_batch([(length, length) for length in lengths], shape, 16, torch.float16)
    merged = torch.randn(tokens, 6 * 64).half()
    merged[131] = NAN  # the second row's second token
    angles = torch.rand(200, 32) * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), 1)
    rows = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))
    slots = batch.table[rows, batch.q_pos // 16].long() * 16 + batch.q_pos % 16
    q, k, v = merged.unflatten(1, (6, 64)).split((2, 2, 2), 1)
    pages = batch.k_pages, batch.v_pages
    batch.q = rope_write_reference(q, k, v, cos_sin, batch.q_pos, *pages, slots)
    exact, _ = batch.reference(shape)
    torchs, _ = batch.reference(shape, torch.float16)
    rotated = rope_write(q, k, v, cos_sin, batch.q_pos, *(page.clone() for page in pages), slots, keep=True)
    out, _ = batch.poisoned_output(shape)
    kv = DenseKV(merged, batch.q_start, 2 * 64, 4 * 64)
    dense_attention(
        rotated, kv, batch.q_start, batch.q_pos, batch.kv_len, out, None, shape, NO_DEVICE,
        first_row=0, num_rows=3, num_tokens=tokens,
    )  # fmt: skip
    sound = torch.ones(tokens, dtype=torch.bool)
    sound[130:200] = False  # the whole row
    assert out[131:200].isnan().any(-1).all()
    assert_as_good_as_torch(out[sound], torchs[sound], exact[sound])


@pytest.mark.parametrize(
    ("shape", "dtype", "traits"),
    [
        (AttentionShape(4, 2, 64, 64, 0.125, window=100), torch.float16, NO_DEVICE),
        (AttentionShape(4, 2, 64, 64, 0.125, softcap=30.0), torch.float16, NO_DEVICE),
        (AttentionShape(4, 2, 96, 96, 0.125), torch.float16, NO_DEVICE),
        (AttentionShape(4, 2, 64, 64, 0.125), torch.float32, NO_DEVICE),
        (AttentionShape(4, 2, 64, 64, 0.125), torch.float16, DeviceTraits(89, 128, 101376)),
    ],
)
def test_what_the_dense_kernel_does_not_compute_is_left_to_the_paged_one(shape, dtype, traits):
    assert not dense_supported(shape, dtype, traits)
