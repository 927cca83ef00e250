"""The Triton backend and operations against the torch ones, on whole steps over one cache."""

import pytest
import torch
from kernel_cases import PagedBatch, layout_of, paged_batch

from octavo.engine.attention import triton_backend
from octavo.engine.attention.base import AttentionStep, AttnSpec, CacheGroup, LayerKV, Plane
from octavo.engine.attention.torch_backend import TorchBackend
from octavo.engine.attention.triton_backend import TritonBackend
from octavo.engine.model.ops import TextbookOps
from octavo.engine.model.ops_triton import TritonOps
from octavo.kernels import dense_attention
from octavo.kernels.device import DeviceTraits, as_device
from octavo.kernels.paged_attention import AttentionShape

SPEC = AttnSpec(q_heads=4, kv_heads=2, qk_dim=32, v_dim=32, scale=0.2)
SHAPE = AttentionShape(4, 2, 32, 32, 0.2)
TURING = DeviceTraits(capability=75, multiprocessors=4, shared_bytes=65536)
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


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


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("rows", [[(40, 1), (1, 1)], [(30, 30), (9, 9)], [(40, 1), (70, 30), (300, 1), (5, 5)]])
def test_a_projection_is_rotated_written_and_attended_as_by_the_textbook(rows, norm):
    batch = paged_batch(rows, SHAPE, 16, torch.float32)
    qkv = torch.randn(batch.q.shape[0], 8, 32)
    angles = torch.rand(512, 16)
    table = torch.cat((angles.cos(), angles.sin()), 1)
    weights = torch.rand(2, 32).unbind() if norm else (None, None)
    results = []
    for ops, backend in ((TextbookOps(), TorchBackend()), (TritonOps(), TritonBackend())):
        step = step_with(backend, batch, 16)
        out = ops.rope_attend(qkv.clone(), *weights, 1e-6, table, step.layout.q_pos, step, 0, SPEC)
        results.append((out, step.layers[0].k, step.layers[0].v))
    for theirs, ours in zip(*results):
        torch.testing.assert_close(ours, theirs, equal_nan=True, **TOLERANCE)


@pytest.mark.parametrize("cached", [0, 50])
def test_long_pieces_are_attended_over_dense_keys_with_the_same_result(cached, monkeypatch):
    """Fresh pieces out of the projection, others out of a copy of their pages; decode rows beside them."""
    spec, shape = AttnSpec(4, 2, 64, 64, 0.125), AttentionShape(4, 2, 64, 64, 0.125)
    groups = [CacheGroup("all", (0,), (Plane("k", 2, 64), Plane("v", 2, 64)))]
    monkeypatch.setattr(triton_backend, "DENSE_READS", 20)
    batch = paged_batch([(40, 1), (70 + cached, 70), (30, 30)], shape, 16, torch.float16)
    qkv = torch.randn(batch.q.shape[0], 8, 64).half()
    angles = torch.rand(512, 32)
    table = torch.cat((angles.cos(), angles.sin()), 1)
    launched = []
    original = dense_attention.dense_attention
    monkeypatch.setattr(
        dense_attention, "dense_attention", lambda *args, **more: (launched.append(args[1]), original(*args, **more))
    )
    results = []
    for ops, backend in ((TextbookOps(), TorchBackend()), (TritonOps(), TritonBackend())):
        layer = LayerKV(batch.k_pages.clone(), batch.v_pages.clone(), 0)
        step = AttentionStep(backend, backend.plan(layout_of(batch, 16), groups), [layer])
        out = ops.rope_attend(qkv.clone(), None, None, 0.0, table, step.layout.q_pos, step, 0, spec)
        results.append((out, layer.k, layer.v))
    assert [kv.k_column for kv in launched] == [0 if cached else 4 * 64]
    for theirs, ours in zip(*results):
        torch.testing.assert_close(ours, theirs, equal_nan=True, rtol=5e-3, atol=2e-3)
