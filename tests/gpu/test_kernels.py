"""The kernels on a real GPU at real shapes: errors against float64 at most twice torch's own in the same type.

With pytest-xdist, `-n 8` compiles the variants in parallel.
"""

import pytest
import torch
from decode_cases import attend_decode
from kernel_cases import PagedBatch, assert_as_good_as_torch, paged_batch

from octavo.engine.sample import noise
from octavo.kernels import activation, paged_attention, rms_norm, rope, sampling
from octavo.kernels.attention_decode import decode_kernel
from octavo.kernels.attention_prefill import prefill_kernel
from octavo.kernels.attention_schedule import schedule_kernel
from octavo.kernels.paged_attention import AttentionShape

NAN = float("nan")
TYPES = [torch.bfloat16, torch.float16, torch.float32]
MIXED = [(0, 1), (1, 1), (700, 1), (2100, 1), (33, 5), (300, 300), (1000, 129), (64, 64)]


def gpu(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def attend(batch: PagedBatch, shape: AttentionShape, programs: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """One mixed step into poisoned outputs, decode rows cut for so many programs or as the backend would."""
    out, lse = attend_decode(batch, shape, programs)
    paged_attention.prefill_attention(
        batch.q, batch.k_pages, batch.v_pages, batch.table, batch.q_start, batch.q_pos, batch.kv_len, out, lse, shape,
        first_row=batch.decode_rows, num_rows=len(batch.q_lens), num_tokens=batch.q.shape[0] - batch.decode_rows,
        max_q=max(batch.q_lens),
    )  # fmt: skip
    return out, lse


def check_attention(batch: PagedBatch, shape: AttentionShape, programs: int | None = None) -> None:
    exact, exact_lse = batch.reference(shape)
    torchs, _ = batch.reference(shape, batch.q.dtype)
    out, lse = attend(batch, shape, programs)
    assert_as_good_as_torch(out, torchs, exact)
    assert torch.equal(lse.isneginf(), exact_lse.isneginf())
    tolerance = 1e-4 if batch.q.dtype == torch.float32 else 2e-2
    torch.testing.assert_close(lse.double(), exact_lse, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("heads", [(8, 2), (14, 2), (4, 4)])
def test_attention_of_a_mixed_step(heads, dim, dtype):
    shape = AttentionShape(*heads, dim, dim, dim**-0.5)
    check_attention(paged_batch(MIXED, shape, 16, dtype, "cuda"), shape)


@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize(
    ("window", "softcap", "page_size"), [(100, None, 16), (1024, None, 64), (None, 30.0, 16), (77, 50.0, 1000)]
)
def test_attention_with_windows_softcaps_and_long_pages(window, softcap, page_size, dim):
    shape = AttentionShape(8, 4, dim, dim, dim**-0.5, softcap, window)
    check_attention(paged_batch(MIXED, shape, page_size, torch.bfloat16, "cuda"), shape)


@pytest.mark.parametrize("shape", [AttentionShape(32, 8, 128, 128, 0.088), AttentionShape(14, 2, 64, 64, 0.125)])
def test_long_rows_and_many_rows_of_real_models(shape):
    check_attention(paged_batch([(20000, 1), (8192, 2048)], shape, 16, torch.bfloat16, "cuda"), shape)
    lengths = torch.randint(1, 900, (64,)).tolist()
    rows = [(length, 1) for length in lengths] + [(length, min(length, 70)) for length in lengths]
    check_attention(paged_batch(rows, shape, 16, torch.bfloat16, "cuda"), shape)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_any_number_of_splits_is_as_good(dtype):
    shape = AttentionShape(8, 2, 128, 128, 0.088)
    batch = paged_batch([(0, 1), (5, 1), (3000, 1), (2049, 1), (9, 9)], shape, 16, dtype, "cuda")
    for programs in (1, *range(5, 200, 14)):
        check_attention(batch, shape, programs)


def test_pages_beyond_two_to_the_31_elements():
    shape = AttentionShape(8, 8, 128, 128, 0.088)
    spare = 2**31 // (8 * 16 * 128)
    batch = paged_batch([(500, 1), (300, 300)], shape, 16, torch.bfloat16, "cuda", spare_pages=spare, shuffled=False)
    assert int(batch.table[batch.table > 0].min()) * 8 * 16 * 128 > 2**31
    check_attention(batch, shape)
    far = batch.k_pages.shape[0] - 1
    k, v = gpu(3, 8, 128, dtype=torch.bfloat16), gpu(3, 8, 128, dtype=torch.bfloat16)
    slots = torch.tensor([far * 16 + 3, 5, far * 16 + 15], device="cuda")
    rope.write_kv(k, v, batch.k_pages, batch.v_pages, slots)
    assert torch.equal(batch.k_pages[far, :, 3], k[0])
    assert torch.equal(batch.v_pages[far, :, 15], v[2])


def test_new_lengths_compile_nothing_new():
    shape = AttentionShape(8, 2, 64, 64, 0.125)

    def variants() -> list[int]:
        device = torch.cuda.current_device()
        return [len(kernel.device_caches[device][0]) for kernel in (schedule_kernel, decode_kernel, prefill_kernel)]

    attend(paged_batch([(500, 1), (90, 90), (77, 20)], shape, 16, torch.bfloat16, "cuda"), shape, 30)
    before = variants()
    for rows in ([(16, 1), (1, 1), (80, 80)], [(4097, 1), (100, 100)], [(33, 1)] * 16 + [(128, 128), (17, 16)]):
        for programs in (20, 600):
            attend(paged_batch(rows, shape, 16, torch.bfloat16, "cuda"), shape, programs)
    assert variants() == before


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("weight_dtype", ["same", torch.float32])
@pytest.mark.parametrize("size", [64, 896, 3840, 4096, 16384])
def test_rms_norm(size, weight_dtype, dtype):
    x, residual = gpu(300, size, dtype=dtype), gpu(300, size, dtype=dtype)
    weight = gpu(size, dtype=dtype if weight_dtype == "same" else weight_dtype)
    total = x + residual
    exact = rms_norm.rms_norm_reference(total.double(), weight.double(), 1e-6)
    torchs = rms_norm.rms_norm_reference(total, weight, 1e-6)
    assert_as_good_as_torch(rms_norm.rms_norm(total, weight, 1e-6), torchs, exact)
    normed, summed = rms_norm.add_rms_norm(x.clone(), residual.clone(), weight, 1e-6)
    assert torch.equal(summed, total)
    assert_as_good_as_torch(normed, torchs, exact)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("heads", "dim", "rotary"), [((32, 8), 128, 128), ((14, 2), 64, 64), ((16, 16), 96, 32)])
@pytest.mark.parametrize("norm", [False, True])
def test_rotary_with_kv_write(heads, dim, rotary, norm, dtype):
    tokens, pages = 700, 60
    merged = gpu(tokens, (heads[0] + 2 * heads[1]) * dim, dtype=dtype)
    cut = (heads[0] * dim, heads[1] * dim, heads[1] * dim)
    q, k, v = (part.unflatten(1, (-1, dim)) for part in merged.split(cut, 1))
    angles = torch.rand(4096, rotary // 2, device="cuda") * 6
    table = torch.cat((angles.cos(), angles.sin()), 1)
    positions = torch.randint(0, 4096, (tokens,), device="cuda")
    slots = torch.randperm(pages * 16, device="cuda")[:tokens]
    weights = [gpu(dim, dtype=dtype) if norm else None for _ in "qk"]

    def run(function, *inputs: torch.Tensor, weights: list) -> tuple[torch.Tensor, ...]:
        caches = [torch.full((pages, heads[1], 16, dim), NAN, dtype=inputs[0].dtype, device="cuda") for _ in "kv"]
        out = function(*inputs, table.to(inputs[0].dtype) if inputs[0].dtype == torch.float64 else table,
                       positions, *caches, slots, *weights, 1e-6)  # fmt: skip
        return out, *caches

    wide = [None if weight is None else weight.double() for weight in weights]
    exact = run(rope.rope_write_reference, q.double(), k.double(), v.double(), weights=wide)
    torchs = run(rope.rope_write_reference, q, k, v, weights=weights)
    ours = run(rope.rope_write, q, k, v, weights=weights)
    for actual, theirs, true in zip(ours, torchs, exact):
        assert torch.equal(actual.isnan(), true.isnan())
        assert_as_good_as_torch(actual.nan_to_num(), theirs.nan_to_num(), true.nan_to_num())


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("act", sorted(activation.ACTIVATIONS))
def test_gated_activation(act, dtype):
    merged = gpu(200, 2 * 4864, dtype=dtype) * 4
    exact = activation.gated_reference(merged.double(), act)
    assert_as_good_as_torch(activation.gated(merged, act), activation.gated_reference(merged, act), exact)


def test_argmax_and_draws_over_a_real_vocabulary():
    scores = gpu(64, 151936) * 3
    scores[5, 100_000] = NAN
    best, ids = sampling.argmax(scores)
    exact, expected = sampling.argmax_reference(scores)
    sound = ~exact.isnan()
    assert torch.equal(best.isnan(), exact.isnan())
    assert torch.equal(best[sound], exact[sound])
    assert torch.equal(ids[sound], expected[sound])
    streams = torch.tensor([noise.stream(1000 + row) for row in range(64)], device="cuda")
    positions = torch.arange(64, device="cuda") * 1000
    temperature, min_weight = torch.rand(64, device="cuda") + 0.3, torch.rand(64, device="cuda") * 0.1
    drawn = sampling.draw(scores, best, temperature, min_weight, streams, positions)
    expected = sampling.draw_reference(scores, best, temperature, min_weight, streams, positions)
    # a rounding in log may decide between two tokens that are equal to float32's last bits
    assert (drawn != expected)[sound].sum() <= 1


def test_draws_on_the_gpu_follow_the_softmax():
    rows = 100_000
    scores = torch.tensor([0.0, 0.5, 1.0, 2.0], device="cuda").expand(rows, 4).contiguous()
    streams, positions = torch.tensor([noise.stream(7)] * rows, device="cuda"), torch.arange(rows, device="cuda")
    row = torch.ones(rows, device="cuda")
    drawn = sampling.draw(scores, 2 * row, row, 0 * row, streams, positions)
    counts = torch.bincount(drawn, minlength=4)
    expected = torch.softmax(scores[0], -1) * rows
    assert ((counts - expected) ** 2 / expected).sum() < 16.3  # chi-square, 3 degrees of freedom, p = 0.001
