"""How products of some tens of rows join a decoder's layers; the products themselves need a GPU (tests/gpu)."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from layer_cases import EPS, HIDDEN, TOLERANCE, layer, linear, run

from octavo.engine.model import tens_of_rows
from octavo.engine.model.ops import TextbookOps
from octavo.engine.model.ops_triton import TritonOps
from octavo.kernels import linear_wide
from octavo.kernels.device import DeviceTraits
from octavo.kernels.skinny_linear import skinny_linear_reference

ROWS = 20
PARTS = 3


@pytest.fixture
def products(monkeypatch):
    """Products of 17 to 64 rows by plain torch, and how many of each kind there were."""
    counts = {"whole": 0, "gated": 0, "parts": 0}

    def wide_linear(x, weight, bias=None, *, gated=False, out_dtype=None):
        counts["gated" if gated else "whole"] += 1
        return skinny_linear_reference(x, weight, bias, act="silu" if gated else None, out_dtype=out_dtype)

    def wide_linear_parts(x, weight):
        counts["parts"] += 1
        size = x.shape[1]
        ends = [0, size // 3, size // 2, size]
        return torch.stack([x[:, a:b].float() @ weight[:, a:b].float().t() for a, b in pairwise(ends)])

    monkeypatch.setattr(linear_wide, "suits_wide", lambda rows, weight, device: 17 <= rows <= 64)
    monkeypatch.setattr(linear_wide, "wide_linear", wide_linear)
    monkeypatch.setattr(linear_wide, "wide_linear_parts", wide_linear_parts)
    return counts


def test_layers_are_those_of_the_textbook(products):
    layers, hidden = [layer(), layer()], torch.randn(ROWS, HIDDEN).half()
    expected, expected_seen = run(TextbookOps(), layers, hidden.clone())
    ops = TritonOps()
    ops.bind(SimpleNamespace(layers=layers), (), ())
    seen, delta, out = [], None, hidden.clone()
    for each in layers:
        q, out = ops.norm_linear(delta, out, each.attn_norm, EPS, each.qkv[0])
        delta, out = ops.linear_add(q, each.o, out)
        assert delta.shape == (PARTS, ROWS, HIDDEN)
        inner, out = ops.norm_gated(delta, out, each.mlp_norm, EPS, each.gate_up[0], "silu")
        delta, out = ops.linear_add(inner, each.down, out)
        seen += [q, inner]
    assert products == {"whole": 2, "gated": 2, "parts": 4}
    for ours, theirs in zip(seen, expected_seen, strict=True):
        torch.testing.assert_close(ours, theirs, **TOLERANCE)
    without, same = ops.norm(delta, out.clone(), None, EPS)  # the stream itself, as before an inner layer
    assert without is same
    torch.testing.assert_close(without, expected, **TOLERANCE)
    weight = torch.rand(HIDDEN).half()
    normed, summed = ops.norm(delta, out, weight, EPS)
    torch.testing.assert_close(summed, expected, **TOLERANCE)
    torch.testing.assert_close(normed, TextbookOps().rms_norm(expected, weight, EPS), **TOLERANCE)


def test_an_activation_without_a_fused_form_follows_the_product(products):
    each, hidden = layer(), torch.randn(ROWS, HIDDEN).half()
    expected, _ = TextbookOps().norm_gated(None, hidden, each.mlp_norm, EPS, each.gate_up[0], "gelu")
    out, _ = TritonOps().norm_gated(None, hidden, each.mlp_norm, EPS, each.gate_up[0], "gelu")
    torch.testing.assert_close(out, expected, **TOLERANCE)
    assert products["gated"] == 0


def test_scores_are_float32(products):
    head, hidden = linear(70, HIDDEN), torch.randn(ROWS, HIDDEN).half()
    scores = TritonOps().head(head, hidden)
    assert scores.dtype == torch.float32
    assert products["whole"] == 1
    torch.testing.assert_close(scores, TextbookOps().head(head, hidden), **TOLERANCE)


def test_a_sum_with_a_bias_is_left_whole(products):
    ref, x, hidden = linear(HIDDEN, 64, bias=True), torch.randn(ROWS, 64).half(), torch.randn(ROWS, HIDDEN).half()
    delta, stream = TritonOps().linear_add(x, ref, hidden)
    assert stream is hidden
    torch.testing.assert_close(delta, ref(x), **TOLERANCE)
    assert products["parts"] == 0


def test_codes_rows_of_other_counts_and_views_go_elsewhere(products):
    plain, x = linear(64, HIDDEN), torch.randn(ROWS, HIDDEN).half()
    assert tens_of_rows.takes(x, plain)
    assert not tens_of_rows.takes(x, linear(64, HIDDEN, name="int8"))
    assert not tens_of_rows.takes(torch.randn(65, HIDDEN).half(), plain)
    assert not tens_of_rows.takes(torch.randn(ROWS, 2 * HIDDEN).half()[:, ::2], plain)
    assert not tens_of_rows.takes(x.float(), plain)


def test_nothing_is_taken_where_there_is_no_gpu():
    assert not tens_of_rows.takes(torch.randn(ROWS, HIDDEN).half(), linear(64, HIDDEN))


@pytest.mark.parametrize("outs", [896, 1152, 2048, 4096, 6144, 14336, 28672, 128256])
@pytest.mark.parametrize("size", [584, 896, 4096, 14336])
def test_tiles_fit_a_multiprocessor_and_share_outputs_alike_for_any_count_of_rows(outs, size):
    hopper = DeviceTraits(90, 132, 232448)
    for gated, in_parts in ((False, False), (True, False), (False, True)):
        tiles = [linear_wide.choose_wide_tile(rows, outs, size, gated, in_parts, hopper) for rows in (17, 32, 33, 64)]
        assert len({tile.split for tile in tiles}) == 1
        for tile in tiles:
            stage = (linear_wide.BLOCK_T + tile.block_n * (2 if gated else 1)) * tile.block_k * 2
            assert tile.stages * stage + 8 * tile.stages <= hopper.shared_bytes - 1024
            assert in_parts or tile.split == 1
            turns = -(-size // tile.block_k)
            each = -(-turns // tile.split)
            assert (tile.split - 1) * each < turns  # every program has some of the input
