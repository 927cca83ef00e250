import pytest
import torch
from kernel_cases import PagedBatch, assert_as_good_as_torch, paged_batch

from octavo.kernels.decode_attention import decode_attention, decode_work
from octavo.kernels.device import DeviceTraits, as_device
from octavo.kernels.paged_attention import AttentionShape, prefill_attention

TURING = DeviceTraits(capability=75, multiprocessors=4, shared_bytes=65536)


def shape_of(heads: tuple[int, int], dim: int, v_dim: int | None = None, **more: object) -> AttentionShape:
    return AttentionShape(*heads, dim, v_dim or dim, dim**-0.5, **more)


def decode(
    batch: PagedBatch, shape: AttentionShape, out: torch.Tensor, lse: torch.Tensor | None, programs: int | None = None
) -> None:
    work = decode_work(shape, batch.q.dtype, batch.q_pos, batch.kv_len, rows=batch.decode_rows, programs=programs)
    decode_attention(
        batch.q, batch.k_pages, batch.v_pages, batch.table, out, lse, shape, work, batch.q_pos
    )  # fmt: skip
    assert not work.counters.any()


def prefill(batch: PagedBatch, shape: AttentionShape, out: torch.Tensor, lse: torch.Tensor | None) -> None:
    prefill_attention(
        batch.q, batch.k_pages, batch.v_pages, batch.table, batch.q_start, batch.q_pos, batch.kv_len, out, lse, shape,
        first_row=batch.decode_rows, num_rows=len(batch.q_lens), num_tokens=batch.q.shape[0] - batch.decode_rows,
        max_q=max(batch.q_lens),
    )  # fmt: skip


def assert_lse_equal(lse: torch.Tensor, exact: torch.Tensor, tolerance: float) -> None:
    assert torch.equal(lse.isneginf(), exact.isneginf())
    torch.testing.assert_close(lse.double(), exact, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("shape", "page_size", "dtype"),
    [
        (shape_of((3, 1), 64), 16, torch.float32),
        (shape_of((6, 2), 64), 16, torch.float16),
        (shape_of((3, 3), 80), 16, torch.float16),
        (shape_of((8, 1), 96), 200, torch.float16),
        (shape_of((2, 1), 96), 200, torch.float32),
        (shape_of((2, 1), 128), 64, torch.float16),
        (shape_of((2, 2), 256), 16, torch.float16),
        (shape_of((2, 1), 256), 16, torch.float32),
        (shape_of((4, 2), 24, 40), 5, torch.float32),
        (shape_of((4, 2), 24, 40), 5, torch.float16),
        (shape_of((6, 2), 64, window=24), 16, torch.float16),
        (shape_of((2, 2), 64, window=100), 256, torch.float16),
        (shape_of((2, 1), 64, window=100), 256, torch.float32),
        (shape_of((6, 2), 64, softcap=20.0), 16, torch.float16),
        (shape_of((2, 1), 64, softcap=5.0, window=9), 16, torch.float32),
        (shape_of((4, 2), 64, softcap=5.0, window=9), 16, torch.float16),
        (shape_of((4, 2), 64, causal=False), 16, torch.float16),
        (shape_of((2, 1), 64, causal=False), 16, torch.float32),
    ],
)
def test_a_mixed_step_is_as_good_as_torch_and_reads_only_what_it_may(shape, page_size, dtype):
    batch = paged_batch([(0, 1), (1, 1), (130, 1), (70, 3), (40, 40), (0, 2)], shape, page_size, dtype)
    exact, exact_lse = batch.reference(shape)
    torchs, _ = batch.reference(shape, dtype)
    out, lse = batch.poisoned_output(shape)
    decode(batch, shape, out, lse)
    prefill(batch, shape, out, lse)
    assert_as_good_as_torch(out, torchs, exact)
    assert_lse_equal(lse, exact_lse, 1e-4 if dtype == torch.float32 else 5e-3)
    assert not out[0].any()
    assert lse[0].isneginf().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("window", [None, 200])
def test_any_number_of_splits_gives_the_same(window, dtype):
    shape = shape_of((2, 1), 64, window=window)
    batch = paged_batch([(0, 1), (5, 1), (300, 1), (420, 1)], shape, 16, dtype)
    exact, exact_lse = batch.reference(shape)
    torchs, _ = batch.reference(shape, dtype)
    for programs in (1, 12, 40):
        out, lse = batch.poisoned_output(shape)
        decode(batch, shape, out, lse, programs)
        assert_as_good_as_torch(out, torchs, exact)
        assert_lse_equal(lse, exact_lse, 1e-4 if dtype == torch.float32 else 5e-3)


def test_devices_without_tensor_cores_decode_on_vectors_with_the_same_result():
    shape = shape_of((3, 1), 80, softcap=10.0)
    batch = paged_batch([(0, 1), (33, 1), (200, 1)], shape, 16, torch.float16)
    exact, _ = batch.reference(shape)
    torchs, _ = batch.reference(shape, torch.float16)
    for programs in (1, 20):
        out, lse = batch.poisoned_output(shape)
        with as_device(TURING):
            decode(batch, shape, out, lse, programs)
        assert_as_good_as_torch(out, torchs, exact)


def test_a_group_wider_than_a_tile_is_cut_into_head_tiles():
    shape = shape_of((80, 1), 32)
    batch = paged_batch([(20, 1), (9, 2)], shape, 16, torch.float16)
    exact, _ = batch.reference(shape)
    torchs, _ = batch.reference(shape, torch.float16)
    out, _ = batch.poisoned_output(shape)
    decode(batch, shape, out, None)
    prefill(batch, shape, out, None)
    assert_as_good_as_torch(out, torchs, exact)


def test_many_rows_find_their_tiles():
    shape = shape_of((1, 1), 16)
    lengths = torch.randint(2, 6, (130,)).tolist()
    batch = paged_batch([(length, length) for length in lengths], shape, 4, torch.float32)
    exact, exact_lse = batch.reference(shape)
    out, lse = batch.poisoned_output(shape)
    prefill(batch, shape, out, lse)
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-5)
    assert_lse_equal(lse, exact_lse, 1e-4)


def test_a_cache_of_another_type_is_read():
    shape = shape_of((4, 2), 64)
    batch = paged_batch([(40, 1), (20, 5)], shape, 16, torch.float16)
    batch.q = batch.q.float()
    exact, _ = batch.reference(shape)
    out, _ = batch.poisoned_output(shape)
    decode(batch, shape, out, None)
    prefill(batch, shape, out, None)
    torch.testing.assert_close(out.double(), exact, rtol=1e-4, atol=1e-5)


def test_queries_may_be_views_of_a_merged_projection():
    shape = shape_of((4, 2), 64)
    batch = paged_batch([(40, 1), (20, 5)], shape, 16, torch.float16)
    exact, _ = batch.reference(shape)
    torchs, _ = batch.reference(shape, torch.float16)
    wide = torch.zeros(batch.q.shape[0], 700, dtype=torch.float16)
    wide[:, 100 : 100 + 256] = batch.q.flatten(1)
    batch.q = wide[:, 100 : 100 + 256].unflatten(1, (4, 64))
    out, _ = batch.poisoned_output(shape)
    decode(batch, shape, out, None)
    prefill(batch, shape, out, None)
    assert_as_good_as_torch(out, torchs, exact)


def test_a_step_captured_at_bounds_computes_and_writes_nothing_beyond_its_rows():
    """More rows, tokens and queries a row were allowed for than came; the rows that did not come have no tokens."""
    shape = shape_of((4, 2), 32)
    batch = paged_batch([(30, 1), (70, 3), (20, 20), (0, 0), (0, 0)], shape, 16, torch.float16)
    exact, _ = batch.reference(shape)
    torchs, _ = batch.reference(shape, torch.float16)
    came = batch.q.shape[0]
    batch.q = torch.cat((batch.q, torch.full((40, 4, 32), float("nan")).half()))
    batch.q_pos = torch.cat((batch.q_pos, torch.zeros(40, dtype=torch.int64)))
    out, lse = batch.poisoned_output(shape)
    decode(batch, shape, out, lse)
    prefill_attention(
        batch.q, batch.k_pages, batch.v_pages, batch.table, batch.q_start, batch.q_pos, batch.kv_len, out, lse, shape,
        first_row=1, num_rows=5, num_tokens=came - 1 + 40, max_q=64,
    )  # fmt: skip
    assert_as_good_as_torch(out[:came], torchs[:came], exact[:came])
    assert out[came:].isnan().all()
    assert lse[came:].isnan().all()
