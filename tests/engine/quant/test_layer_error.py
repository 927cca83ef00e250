"""The errors of one layer that docs/quantization.md tells, on weights in full precision: plain, with outliers among the
weights, with outliers among the activations."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from octavo.engine.quant import FORMATS
from octavo.engine.quant.base import LinearSpec, Part

DOCUMENT = Path(__file__).parents[3] / "docs" / "quantization.md"
COLUMNS, ROWS, OUTLIERS = 4096, 256, 8


@pytest.fixture(scope="module")
def layers() -> list[tuple[Tensor, Tensor]]:
    """(weight, activations): eight columns of weights 20 times, or eight channels of activations 30 times as large."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(ROWS, COLUMNS, generator=generator) * 0.02
    x = torch.randn(16, COLUMNS, generator=generator)
    places = torch.randperm(COLUMNS, generator=generator)
    steep, loud = weight.clone(), x.clone()
    steep[:, places[:OUTLIERS]] *= 20
    loud[:, places[OUTLIERS : 2 * OUTLIERS]] *= 30
    return [(weight, x), (steep, x), (weight, loud)]


def told(name: str) -> list[float]:
    """The three figures of a format's row, in per cent."""
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == f"`{name}`" and len(cells) == 4:
            return [float(cell) for cell in cells[1:]]
    raise AssertionError(f"no row for {name}")


@pytest.mark.parametrize("name", sorted(name for name, form in FORMATS.items() if form.quantizes))
def test_the_error_of_a_layer_is_what_the_documentation_tells(name: str, layers: list[tuple[Tensor, Tensor]]) -> None:
    spec = LinearSpec("layer", (Part("layer", ROWS),), COLUMNS)
    form = FORMATS[name].fitted(spec)
    found = []
    for weight, x in layers:
        packed = form.allocate(spec, torch.float32, torch.device("cpu"))
        form.pack(packed, spec, {"weight": weight})
        exact = x @ weight.T
        found.append(100 * float((form.linear(x, packed) - exact).norm() / exact.norm()))
    assert found == pytest.approx(told(name), rel=0.06)
