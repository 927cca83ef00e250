"""The fused products of few rows through the operations a decoder calls, against the textbook's."""

from types import SimpleNamespace

import pytest
import torch
from layer_cases import EPS, HIDDEN, TOLERANCE, layer, linear, run

from octavo.engine.model.few_rows import FewRows
from octavo.engine.model.ops import TextbookOps
from octavo.engine.model.ops_triton import TritonOps
from octavo.engine.quant import FORMATS
from octavo.engine.quant.base import WeightRef
from octavo.kernels.device import DeviceTraits, as_device
from octavo.kernels.skinny_linear import MAX_ROWS, MAX_ROWS_OF_WORDS


@pytest.mark.parametrize(
    ("rows", "bound"), [(1, True), (2, False), (3, True), (3, False), (MAX_ROWS, True), (MAX_ROWS + 1, True)]
)
def test_layers_are_those_of_the_textbook_however_many_rows_there_are(rows, bound, monkeypatch):
    # the interpreter multiplies bfloat16 tiles wrongly; float16 takes the same way where numbers are small
    monkeypatch.setattr("octavo.engine.model.few_rows.PREPARED_TYPES", (torch.float16,))
    layers, hidden = [layer(), layer()], torch.randn(rows, HIDDEN).half()
    expected, expected_seen = run(TextbookOps(), layers, hidden.clone())
    ops = TritonOps()
    if bound:
        ops.bind(SimpleNamespace(layers=layers), (), ())
    out, seen = run(ops, layers, hidden.clone())
    torch.testing.assert_close(out, expected, **TOLERANCE)
    for ours, theirs in zip(seen, expected_seen, strict=True):
        torch.testing.assert_close(ours, theirs, **TOLERANCE)


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        *((1, "int4"), (3, "int4"), (MAX_ROWS + 1, "int4"), (MAX_ROWS_OF_WORDS + 1, "int4"), (3, "int4-symmetric")),
        *((1, "int8"), (3, "int8"), (MAX_ROWS + 1, "int8"), (3, "int8-dynamic"), (MAX_ROWS + 1, "int8-dynamic")),
        *((1, "fp8"), (3, "fp8"), (MAX_ROWS + 1, "fp8")),
    ],
)
def test_layers_in_codes_are_those_of_the_textbook(rows, name, monkeypatch):
    monkeypatch.setattr("octavo.engine.model.few_rows.PREPARED_TYPES", (torch.float16,))
    layers, hidden = [layer(name)], torch.randn(rows, HIDDEN).half()
    ops = TritonOps()
    ops.bind(SimpleNamespace(layers=layers), (), ())
    most = MAX_ROWS_OF_WORDS if name.startswith("int4") or name == "int8" else MAX_ROWS
    assert ops._few.takes(hidden, layers[0].o) == (rows <= most)
    with as_device(DeviceTraits(90, 1, 232448)):  # as many outputs a program as there may be: few programs
        out, seen = run(ops, layers, hidden.clone())
    expected, expected_seen = run(TextbookOps(), layers, hidden.clone())
    # the textbook rounds activations, each by half a step of a 127th of its row's largest
    tolerance = {"rtol": 2e-2, "atol": 5e-2} if name == "int8-dynamic" else TOLERANCE
    for ours, theirs in zip([out, *seen], [expected, *expected_seen], strict=True):
        torch.testing.assert_close(ours, theirs, **tolerance)


def test_a_norm_that_was_prepared_is_not_taken_for_another_stream(monkeypatch):
    monkeypatch.setattr("octavo.engine.model.few_rows.PREPARED_TYPES", (torch.float16,))
    each, few = layer(), FewRows()
    few.bind(SimpleNamespace(layers=[each]))
    stream, other = torch.randn(2, 3, HIDDEN).half().unbind()
    few.linear_add(torch.randn(3, 64).half(), each.o, stream.clone())
    out = few.norm_linear(other, each.mlp_norm, EPS, each.gate_up[0], "silu")
    expected, _ = TextbookOps().norm_gated(None, other, each.mlp_norm, EPS, each.gate_up[0], "silu")
    torch.testing.assert_close(out, expected, **TOLERANCE)


def test_scores_and_the_greedy_choice_agree():
    ops, head, hidden = TritonOps(), linear(70, HIDDEN), torch.randn(2, HIDDEN).half()
    scores = ops.head(head, hidden)
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, TextbookOps().head(head, hidden), **TOLERANCE)
    best, ids = ops.greedy(head, hidden)
    assert torch.equal(ids, scores.argmax(-1))
    torch.testing.assert_close(best, scores.amax(-1))
    assert TextbookOps().greedy(head, hidden) is None


def test_weights_that_move_or_are_not_plain_are_left_to_their_format():
    few, plain, x = FewRows(), linear(16, HIDDEN), torch.randn(1, HIDDEN).half()

    class Moving(WeightRef):
        pass

    assert few.takes(x, plain)
    assert not few.takes(x, Moving(plain.spec, plain.format, plain.acquire()))
    assert not few.takes(x, WeightRef(plain.spec, FORMATS["int8"], plain.acquire()))
    assert not few.takes(x.float(), plain)
