"""The Triton backend as the engine uses it: against plain torch, and inside a captured CUDA graph."""

import torch
from kernel_cases import PagedBatch, assert_as_good_as_torch, layout_of, paged_batch

from octavo.engine.attention import choose_backend
from octavo.engine.attention.base import AttentionStep, AttnSpec, CacheGroup, LayerKV, Plane
from octavo.engine.attention.torch_backend import TorchBackend
from octavo.engine.attention.triton_backend import TritonBackend
from octavo.kernels.paged_attention import AttentionShape

PAGE = 16
SPEC = AttnSpec(q_heads=8, kv_heads=2, qk_dim=128, v_dim=128, scale=128**-0.5)
SHAPE = AttentionShape(8, 2, 128, 128, 128**-0.5)
GROUPS = [CacheGroup("all", (0,), (Plane("k", 2, 128), Plane("v", 2, 128)))]


def test_cuda_gets_the_triton_backend_and_fusion_off_gets_torch():
    device = torch.device("cuda")
    assert isinstance(choose_backend(device, torch.bfloat16, [SPEC], True), TritonBackend)
    assert isinstance(choose_backend(device, torch.bfloat16, [SPEC], False), TorchBackend)


def test_backends_are_equally_good_on_a_written_mixed_step():
    batch = paged_batch([(700, 1), (40, 1), (300, 300), (900, 17)], SHAPE, PAGE, torch.bfloat16, "cuda")
    k, v = torch.randn(2, batch.q.shape[0], 2, 128, device="cuda").bfloat16().unbind()
    results = []
    for backend in (TritonBackend(), TorchBackend()):
        kv = LayerKV(batch.k_pages.clone(), batch.v_pages.clone(), 0)
        step = AttentionStep(backend, backend.plan(layout_of(batch, PAGE), GROUPS), [kv])
        step.write(0, k, v)
        results.append(step.attend(0, SPEC, batch.q))
        batch_after = kv
    batch.k_pages, batch.v_pages = batch_after.k, batch_after.v
    assert_as_good_as_torch(results[0], results[1], batch.reference(SHAPE)[0])


def test_a_captured_step_follows_lengths_and_tables_that_change_between_replays():
    """Decode rows and a prefill row in one graph, captured at bounds; every replay has other rows and other pages."""
    bound = 4096
    cases = [[(1, 1), (300, 1), (0, 1), (5, 5)], [(2000, 1), (4000, 1), (77, 1), (600, 90)], [(16, 1)] * 3 + [(64, 64)]]
    batches = [paged_batch(rows, SHAPE, PAGE, torch.bfloat16, "cuda") for rows in cases]
    tokens, pages = 3 + 90, max(batch.k_pages.shape[0] for batch in batches)
    k_pages = torch.full((pages, 2, PAGE, 128), float("nan"), dtype=torch.bfloat16, device="cuda")
    v_pages = k_pages.clone()
    static = PagedBatch(
        q=torch.zeros(tokens, 8, 128, dtype=torch.bfloat16, device="cuda"),
        k_pages=k_pages,
        v_pages=v_pages,
        table=torch.zeros(4, bound // PAGE, dtype=torch.int32, device="cuda"),
        q_start=torch.tensor([0, 1, 2, 3, 3], dtype=torch.int32, device="cuda"),
        q_pos=torch.zeros(tokens, dtype=torch.int64, device="cuda"),
        kv_len=torch.zeros(4, dtype=torch.int32, device="cuda"),
        decode_rows=3,
        q_lens=[1, 1, 1, 90],
        kv_lens=[bound] * 4,
    )
    backend = TritonBackend()
    layout = layout_of(static, PAGE, max_q=90, max_kv=bound)
    kv = LayerKV(k_pages, v_pages, 0)
    out, lse = static.poisoned_output(SHAPE)
    backend.attend(backend.plan(layout, GROUPS), SPEC, kv, static.q, out, lse)  # compile before capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        backend.attend(backend.plan(layout, GROUPS), SPEC, kv, static.q, out, lse)
    for batch in batches:
        count = batch.q.shape[0]
        static.q[:count] = batch.q
        static.q_pos[:count] = batch.q_pos
        static.q_start.copy_(batch.q_start)
        static.kv_len.copy_(batch.kv_len)
        static.table.zero_()
        static.table[:, : batch.table.shape[1]] = batch.table
        k_pages[: batch.k_pages.shape[0]] = batch.k_pages
        v_pages[: batch.v_pages.shape[0]] = batch.v_pages
        out.fill_(float("nan"))
        graph.replay()
        exact, exact_lse = batch.reference(SHAPE)
        assert_as_good_as_torch(out[:count], batch.reference(SHAPE, torch.bfloat16)[0], exact)
        assert torch.equal(lse[:count].isneginf(), exact_lse.isneginf())
        assert out[count:].isnan().all()
