"""The torch backend against attention written out in float64, one token and one head at a time."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from octavo.engine.attention import choose_backend, torch_backend
from octavo.engine.attention.base import AttnSpec, CacheGroup, LayerKV, Layout, Plane
from octavo.engine.attention.torch_backend import TorchBackend


def reference(spec: AttnSpec, q: Tensor, k: Tensor, v: Tensor, past: int) -> tuple[Tensor, Tensor]:
    """q [n, Hq, D] at positions past.. over keys k, v [kv, Hkv, D]: float64 values and log-sum-exp."""
    q, k, v = q.double(), k.double(), v.double()
    out = torch.zeros(q.shape[0], spec.q_heads, spec.v_dim, dtype=torch.float64)
    lse = torch.full((q.shape[0], spec.q_heads), -math.inf, dtype=torch.float64)
    for token in range(q.shape[0]):
        at = past + token
        last = at + 1 if spec.causal else k.shape[0]
        first = max(0, at - spec.window + 1) if spec.window else 0
        if last <= first:
            continue
        for head in range(spec.q_heads):
            kv_head = head // (spec.q_heads // spec.kv_heads)
            scores = k[first:last, kv_head] @ q[token, head] * spec.scale
            if spec.softcap:
                scores = spec.softcap * torch.tanh(scores / spec.softcap)
            lse[token, head] = torch.logsumexp(scores, 0)
            out[token, head] = torch.softmax(scores, 0) @ v[first:last, kv_head]
    return out, lse


class Scene:
    """Rows with random keys in shuffled pages of a pool whose every other slot is NaN."""

    def __init__(
        self,
        spec: AttnSpec,
        q_lens: list[int],
        kv_lens: list[int],
        page_size: int,
        dtype: torch.dtype = torch.float64,
        seed: int = 0,
        give_back: bool = False,
    ) -> None:
        torch.manual_seed(seed)
        self.spec, self.q_lens, self.kv_lens = spec, q_lens, kv_lens
        pages_of = [max(1, -(-n // page_size)) for n in kv_lens]
        free = list(range(1, 1 + sum(pages_of)))
        random.Random(seed).shuffle(free)
        table = torch.zeros(len(kv_lens), max(pages_of), dtype=torch.int32)
        shape = (1 + sum(pages_of), spec.kv_heads, page_size)
        self.kv = LayerKV(
            torch.full((*shape, spec.qk_dim), math.nan, dtype=dtype),
            torch.full((*shape, spec.v_dim), math.nan, dtype=dtype),
            group=0,
        )
        self.keys, self.values, slots, positions = [], [], [], []
        for row, (q_len, kv_len) in enumerate(zip(q_lens, kv_lens)):
            pages = [free.pop() for _ in range(pages_of[row])]
            k = torch.randn(kv_len, spec.kv_heads, spec.qk_dim, dtype=dtype)
            v = torch.randn(kv_len, spec.kv_heads, spec.v_dim, dtype=dtype)
            first_seen = max(0, kv_len - q_len - (spec.window or kv_len) + 1)
            for at in range(kv_len):
                page, offset = pages[at // page_size], at % page_size
                if at < kv_len - q_len:
                    self.kv.k[page, :, offset], self.kv.v[page, :, offset] = k[at], v[at]
                else:
                    slots.append(page * page_size + offset)
            if give_back:
                for logical in range(first_seen // page_size):
                    self.kv.k[pages[logical]] = self.kv.v[pages[logical]] = math.nan
                    pages[logical] = 0
            table[row, : len(pages)] = torch.tensor(pages)
            positions += range(kv_len - q_len, kv_len)
            self.keys.append(k)
            self.values.append(v)
            slots += [0] * max(0, q_len - kv_len)
        self.q = torch.randn(sum(q_lens), spec.q_heads, spec.qk_dim, dtype=dtype)
        self.layout = Layout(
            q_start=torch.tensor([0, *torch.tensor(q_lens).cumsum(0).tolist()], dtype=torch.int32),
            q_pos=torch.tensor(positions),
            kv_len=torch.tensor(kv_lens, dtype=torch.int32),
            tables=(table,),
            write_slots=(torch.tensor(slots, dtype=torch.int64),),
            page_size=page_size,
            num_rows=len(q_lens),
            num_tokens=sum(q_lens),
            num_decode_rows=next((i for i, n in enumerate(q_lens) if n != 1), len(q_lens)),
            max_q=max(q_lens),
            max_kv=max(kv_lens),
            q_lens=tuple(q_lens),
            kv_lens=tuple(kv_lens),
        )
        self.group = CacheGroup(
            "all", (0,), (Plane("k", spec.kv_heads, spec.qk_dim), Plane("v", spec.kv_heads, spec.v_dim)), spec.window
        )

    def run(self, *, with_lse: bool = True) -> tuple[Tensor, Tensor | None]:
        backend = TorchBackend()
        plan = backend.plan(self.layout, [self.group])
        new = [(k[len(k) - n :], v[len(v) - n :]) for k, v, n in zip(self.keys, self.values, self.q_lens) if len(k)]
        if all(len(k) >= n for k, n in zip(self.keys, self.q_lens)):
            backend.write(plan, self.kv, torch.cat([k for k, _ in new]), torch.cat([v for _, v in new]))
        out = torch.full((len(self.q), self.spec.q_heads, self.spec.v_dim), math.nan, dtype=self.q.dtype)
        lse = torch.full((len(self.q), self.spec.q_heads), math.nan) if with_lse else None
        backend.attend(plan, self.spec, self.kv, self.q, out, lse)
        return out, lse

    def expected(self) -> tuple[Tensor, Tensor]:
        parts = [
            reference(self.spec, q, k, v, len(k) - len(q))
            for q, k, v in zip(self.q.split(self.q_lens), self.keys, self.values)
        ]
        return torch.cat([out for out, _ in parts]), torch.cat([lse for _, lse in parts])

    def check(self, tolerance: float = 1e-9) -> None:
        want_out, want_lse = self.expected()
        out, lse = self.run()
        torch.testing.assert_close(out.double(), want_out, atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(lse, want_lse.float(), atol=max(tolerance, 1e-5), rtol=1e-5)
        out, _ = self.run(with_lse=False)
        torch.testing.assert_close(out.double(), want_out, atol=tolerance, rtol=tolerance)


def make_spec(q_heads: int = 6, kv_heads: int = 2, dim: int = 8, **changes) -> AttnSpec:
    values = {"q_heads": q_heads, "kv_heads": kv_heads, "qk_dim": dim, "v_dim": dim, "scale": 0.3} | changes
    return AttnSpec(**values)


@st.composite
def scenes(draw) -> Scene:
    kv_heads = draw(st.integers(1, 3))
    spec = make_spec(
        q_heads=kv_heads * draw(st.integers(1, 4)),
        kv_heads=kv_heads,
        v_dim=draw(st.sampled_from([8, 12])),
        softcap=draw(st.sampled_from([None, 2.0])),
        window=draw(st.sampled_from([None, None, 1, 5, 16, 40])),
        causal=draw(st.sampled_from([True, True, True, False])),
    )
    decodes = draw(st.lists(st.integers(1, 70), max_size=5))
    prefills = draw(st.lists(st.tuples(st.integers(2, 40), st.integers(0, 40)), max_size=3, min_size=not decodes))
    return Scene(
        spec,
        [1] * len(decodes) + [q for q, _ in prefills],
        decodes + [q + past for q, past in prefills],
        draw(st.sampled_from([1, 4, 7, 16, 96, 200])),
        seed=draw(st.integers(0, 1000)),
        give_back=spec.window is not None and draw(st.booleans()),
    )


@settings(max_examples=120, deadline=None, derandomize=True)
@given(scenes())
def test_random_steps_equal_the_reference_and_read_no_poisoned_slot(scene: Scene) -> None:
    scene.check()


@pytest.mark.parametrize("window", [None, 3, 20])
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_queries_in_small_chunks_equal_one_piece(monkeypatch, window, softcap) -> None:
    monkeypatch.setattr(torch_backend, "MASKED_QUERIES", 4)
    monkeypatch.setattr(torch_backend, "MAX_SCORES", 6 * 60 * 3)
    Scene(make_spec(window=window, softcap=softcap), [1, 1, 33, 14], [5, 40, 33, 60], 8).check()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_sixteen_bit_is_as_exact_as_its_rounding(dtype) -> None:
    tolerance = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    Scene(make_spec(9, 3, 64, scale=0.125), [1, 1, 1, 40], [256, 100, 17, 90], 16, dtype).check(tolerance)


@pytest.mark.parametrize("q_lens", [[1, 1], [1, 3], [3, 5]])
def test_a_row_without_keys_gives_zero_and_minus_infinity(q_lens) -> None:
    scene = Scene(make_spec(), q_lens, [0, 9], 4)
    backend = TorchBackend()
    plan = backend.plan(scene.layout, [scene.group])
    scene.kv.k[scene.kv.k.isnan()] = 0
    scene.kv.v[scene.kv.v.isnan()] = 0
    out, lse = torch.full_like(scene.q, math.nan), torch.full(scene.q.shape[:2], math.nan)
    backend.attend(plan, scene.spec, scene.kv, scene.q, out, lse)
    first = q_lens[0]
    assert (out[:first] == 0).all()
    assert (lse[:first] == -math.inf).all()
    assert out[first:].isfinite().all()
    assert lse[first:].isfinite().all()


@pytest.mark.parametrize("window", [None, 25])
@pytest.mark.parametrize(("worth", "gather"), [(1, 1 << 27), (40, 1 << 27), (1 << 20, 100), (10, 3000)])
def test_decode_rows_of_unlike_lengths_are_read_apart(monkeypatch, window, worth, gather) -> None:
    monkeypatch.setattr(torch_backend, "WORTH_A_SPLIT", worth)
    monkeypatch.setattr(torch_backend, "MAX_GATHER", gather)
    scene = Scene(make_spec(window=window), [1] * 7 + [9], [3, 90, 17, 88, 5, 30, 16, 40], 8, seed=6)
    pieces = TorchBackend().plan(scene.layout, [scene.group]).decode_pieces(0, window)
    assert len(pieces) > 1
    assert sorted(torch.cat([piece.rows for piece in pieces]).tolist()) == list(range(7))
    scene.check()


def test_rows_of_like_lengths_are_read_together() -> None:
    scene = Scene(make_spec(), [1] * 4, [120, 100, 111, 90], 16)
    (piece,) = TorchBackend().plan(scene.layout, [scene.group]).decode_pieces(0, None)
    assert piece.rows is None


def test_one_page_a_row_equals_small_pages() -> None:
    spec = make_spec(window=30)
    lens = [1, 1, 1, 20], [3, 77, 130, 150]
    for page_size in (16, 192, 199):
        Scene(spec, *lens, page_size, seed=4).check()


def test_a_nan_row_spoils_no_neighbour() -> None:
    scene = Scene(make_spec(), [1, 1, 1, 6], [20, 50, 3, 30], 8)
    clean, _ = scene.run(with_lse=False)
    scene.keys[1][:] = math.nan
    broken, _ = scene.run(with_lse=False)
    assert broken[1].isnan().all()
    keep = torch.tensor([0, 2, 3, 4, 5, 6, 7, 8])
    assert torch.equal(broken[keep], clean[keep])


def test_write_touches_only_its_slots() -> None:
    scene = Scene(make_spec(), [1, 5], [9, 12], 4)
    before = scene.kv.k.clone()
    plan = TorchBackend().plan(scene.layout, [scene.group])
    new = torch.randn(6, 2, 8, dtype=torch.float64)
    TorchBackend().write(plan, scene.kv, new, new)
    slots = scene.layout.write_slots[0]
    flat = scene.kv.k.transpose(1, 2).reshape(-1, 2, 8)
    assert torch.equal(flat[slots], new)
    kept = torch.ones(len(flat), dtype=torch.bool)
    kept[slots] = False
    assert torch.equal(flat[kept].nan_to_num(7), before.transpose(1, 2).reshape(-1, 2, 8)[kept].nan_to_num(7))


def test_two_groups_use_their_own_tables() -> None:
    full, near = (
        Scene(make_spec(), [1, 7], [20, 30], 4, seed=1),
        Scene(make_spec(window=6), [1, 7], [20, 30], 4, seed=2),
    )
    layout = full.layout
    both = Layout(
        layout.q_start, layout.q_pos, layout.kv_len, layout.tables + near.layout.tables,
        layout.write_slots + near.layout.write_slots, 4, 2, 8, 1, 7, 30, layout.q_lens, layout.kv_lens,
    )  # fmt: skip
    backend = TorchBackend()
    plan = backend.plan(both, [full.group, near.group])
    for index, scene in enumerate((full, near)):
        kv = LayerKV(scene.kv.k, scene.kv.v, index)
        backend.write(
            plan,
            kv,
            *(torch.cat([p[-1:] if i == 0 else p[-7:] for i, p in enumerate(x)]) for x in (scene.keys, scene.values)),
        )
        out = torch.empty_like(scene.q)
        backend.attend(plan, scene.spec, kv, scene.q, out)
        torch.testing.assert_close(out, scene.expected()[0])


def test_lengths_only_on_the_device_are_enough() -> None:
    scene = Scene(make_spec(), [1, 1, 9], [4, 30, 25], 8)
    layout = scene.layout
    scene.layout = Layout(
        layout.q_start, layout.q_pos, layout.kv_len, layout.tables, layout.write_slots,
        8, 3, 11, 2, 9, 64,
    )  # fmt: skip
    scene.check()


def test_uneven_head_groups_are_refused_with_a_sentence() -> None:
    reason = TorchBackend().supports(make_spec(q_heads=7, kv_heads=2), torch.float32, torch.device("cpu"))
    assert reason == "7 query heads cannot be grouped over 2 KV heads."


def test_the_cpu_and_fusion_off_get_the_torch_backend() -> None:
    for device, fusion in (("cpu", True), ("cuda", False)):
        assert choose_backend(torch.device(device), torch.float16, [make_spec()], fusion).name == "torch"


def test_what_the_kernels_do_not_compute_goes_to_torch_and_is_logged(caplog) -> None:
    caplog.set_level("INFO", logger="octavo.engine.attention")
    backend = choose_backend(torch.device("cuda"), torch.float64, [make_spec()], fusion=True)
    assert backend.name == "torch"
    assert "float64" in caplog.text or "Triton is not usable" in caplog.text
