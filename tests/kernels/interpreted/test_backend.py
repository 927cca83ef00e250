"""The Triton backend and operations against the torch ones, on whole steps over one cache."""

import pytest
import torch
from kernel_cases import PagedBatch, paged_batch

from octavo.engine.attention.base import AttentionStep, AttnSpec, CacheGroup, LayerKV, Layout, Plane
from octavo.engine.attention.torch_backend import TorchBackend
from octavo.engine.attention.triton_backend import TritonBackend
from octavo.engine.model.ops import TextbookOps
from octavo.engine.model.ops_triton import TritonOps
from octavo.kernels.device import DeviceTraits, as_device
from octavo.kernels.paged_attention import AttentionShape

SPEC = AttnSpec(q_heads=4, kv_heads=2, qk_dim=32, v_dim=32, scale=0.2)
SHAPE = AttentionShape(4, 2, 32, 32, 0.2)
TURING = DeviceTraits(capability=75, multiprocessors=4, shared_bytes=65536)
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


def layout_of(batch: PagedBatch, page_size: int) -> Layout:
    rows = torch.repeat_interleave(torch.arange(len(batch.q_lens)), torch.tensor(batch.q_lens))
    slots = batch.table[rows, batch.q_pos // page_size].long() * page_size + batch.q_pos % page_size
    return Layout(
        q_start=batch.q_start,
        q_pos=batch.q_pos,
        kv_len=batch.kv_len,
        tables=(batch.table,),
        write_slots=(slots,),
        page_size=page_size,
        num_rows=len(batch.q_lens),
        num_tokens=batch.q.shape[0],
        num_decode_rows=batch.decode_rows,
        max_q=max(batch.q_lens),
        max_kv=max(batch.kv_lens),
        q_lens=tuple(batch.q_lens),
        kv_lens=tuple(batch.kv_lens),
    )


def step_with(backend, batch: PagedBatch, page_size: int) -> AttentionStep:
    groups = [CacheGroup("all", (0,), (Plane("k", 2, 32), Plane("v", 2, 32)))]
    plan = backend.plan(layout_of(batch, page_size), groups)
    return AttentionStep(backend, plan, [LayerKV(batch.k_pages.clone(), batch.v_pages.clone(), 0)])


@pytest.mark.parametrize("rows", [[(300, 1), (7, 1)], [(9, 9), (50, 4)], [(40, 1), (30, 30), (41, 2), (600, 1)]])
def test_backends_agree_on_decode_prefill_and_mixed_steps(rows):
    batch = paged_batch(rows, SHAPE, 16, torch.float32)
    k, v = torch.randn(2, batch.q.shape[0], 2, 32).unbind()
    results = []
    for backend in (TritonBackend(), TorchBackend()):
        step = step_with(backend, batch, 16)
        step.write(0, k, v)
        results.append((step.attend(0, SPEC, batch.q), step.layers[0].k, step.layers[0].v))
    for ours, theirs in zip(*results):
        torch.testing.assert_close(ours, theirs, equal_nan=True, **TOLERANCE)


def test_before_tensor_cores_only_decode_rows_run_in_triton():
    batch = paged_batch([(40, 1), (30, 30), (41, 2), (20, 1)], SHAPE, 16, torch.float32)
    exact, exact_lse = batch.reference(SHAPE)
    step = step_with(TritonBackend(), batch, 16)
    out, lse = batch.poisoned_output(SHAPE)
    with as_device(TURING):
        step.backend.attend(step.plan, SPEC, step.layers[0], batch.q, out, lse)
    torch.testing.assert_close(out.double(), exact, **TOLERANCE)
    torch.testing.assert_close(lse.double(), exact_lse, **TOLERANCE)


@pytest.mark.parametrize("backend", [TritonBackend, TorchBackend])
@pytest.mark.parametrize("norm", [False, True])
def test_rope_write_equals_the_textbook_on_any_backend(backend, norm):
    batch = paged_batch([(40, 1), (30, 30)], SHAPE, 16, torch.float32)
    merged = torch.randn(batch.q.shape[0], 8 * 32)
    q, k, v = (part.unflatten(1, (-1, 32)) for part in merged.split((128, 64, 64), 1))
    angles = torch.rand(64, 16)
    table = torch.cat((angles.cos(), angles.sin()), 1)
    weights = torch.rand(2, 32)
    textbook, ops = TextbookOps(), TritonOps()
    expected_step, step = step_with(TorchBackend(), batch, 16), step_with(backend(), batch, 16)
    if norm:
        normed = [textbook.rms_norm(x, weight, 1e-6) for x, weight in zip((q, k), weights)]
        expected = textbook.rope_write(*normed, v, table, batch.q_pos, expected_step, 0)
        rotated = ops.norm_rope_write(q, k, v, *weights, 1e-6, table, batch.q_pos, step, 0)
    else:
        expected = textbook.rope_write(q, k, v, table, batch.q_pos, expected_step, 0)
        rotated = ops.rope_write(q, k, v, table, batch.q_pos, step, 0)
    torch.testing.assert_close(rotated, expected, **TOLERANCE)
    torch.testing.assert_close(step.layers[0].k, expected_step.layers[0].k, equal_nan=True, **TOLERANCE)
    torch.testing.assert_close(step.layers[0].v, expected_step.layers[0].v, equal_nan=True, **TOLERANCE)


def test_norms_and_gates_equal_the_textbook():
    textbook, ops = TextbookOps(), TritonOps()
    x, residual, weight = torch.randn(3, 100), torch.randn(3, 100), torch.rand(100)
    torch.testing.assert_close(ops.rms_norm(x, weight, 1e-6), textbook.rms_norm(x, weight, 1e-6), **TOLERANCE)
    expected = textbook.add_rms_norm(x, residual, weight, 1e-6)
    for ours, theirs in zip(ops.add_rms_norm(x.clone(), residual.clone(), weight, 1e-6), expected):
        torch.testing.assert_close(ours, theirs, **TOLERANCE)
    torch.testing.assert_close(ops.gated(x, "gelu"), textbook.gated(x, "gelu"), **TOLERANCE)
