"""The errors of one layer that docs/quantization.md tells of the calibrated methods: on weights in full precision and
inputs that depend on each other, plain, with outliers among the weights, with outliers among the inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from octavo.engine.quant.calibrate.awq import search_scales, search_shares
from octavo.engine.quant.calibrate.gptq import gptq
from octavo.engine.quant.calibrate.grid import Grid
from octavo.engine.quant.calibrate.methods import SAMPLES, round_activations
from octavo.engine.quant.calibrate.smooth import smooth_scales

DOCUMENT = Path(__file__).parents[4] / "docs" / "quantization.md"
COLUMNS, ROWS, SOURCES, OUTLIERS = 1024, 128, 256, 8
FOUR, EIGHT = Grid(4, 64, False, torch.bfloat16), Grid(8, 0, True, torch.bfloat16)
Layer = tuple[Tensor, Tensor, Tensor]  # weight, inputs to calibrate with, others to measure with


@pytest.fixture(scope="module")
def layers() -> list[Layer]:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(ROWS, COLUMNS, generator=generator) * 0.02
    mixing = torch.randn(SOURCES, COLUMNS, generator=generator) / SOURCES**0.5
    places = torch.randperm(COLUMNS, generator=generator)
    steep, loud = torch.ones(COLUMNS), torch.ones(COLUMNS)
    steep[places[:OUTLIERS]] = 20
    loud[places[OUTLIERS : 2 * OUTLIERS]] = 30
    found = []
    for weights, inputs in ((1.0, 1.0), (steep, 1.0), (1.0, loud)):
        x, other = (
            torch.randn(rows, SOURCES, generator=generator) @ mixing
            + 0.3 * torch.randn(rows, COLUMNS, generator=generator)
            for rows in (2048, 256)
        )
        found.append((weight * weights, x * inputs, other * inputs))
    return found


def plain(weight: Tensor, x: Tensor, other: Tensor) -> Tensor:
    return other @ FOUR.nearest(weight).decode().T


def by_awq(weight: Tensor, x: Tensor, other: Tensor) -> Tensor:
    sample = x[:: len(x) // SAMPLES]
    scales, _ = search_scales([weight], x.abs().mean(0), sample, FOUR)
    shares = search_shares(weight * scales, sample / scales, FOUR)
    return (other / scales) @ FOUR.nearest(weight * scales, shares).decode().T


def by_gptq(weight: Tensor, x: Tensor, other: Tensor) -> Tensor:
    return other @ gptq(weight, x.T @ x, FOUR).decode().T


def plain_w8a8(weight: Tensor, x: Tensor, other: Tensor) -> Tensor:
    return round_activations(other) @ EIGHT.nearest(weight).decode().T


def by_smoothquant(weight: Tensor, x: Tensor, other: Tensor) -> Tensor:
    scales = smooth_scales([weight], x.abs().amax(0))
    return round_activations(other / scales) @ EIGHT.nearest(weight * scales).decode().T


METHODS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "4 bits, plain": plain,
    "4 bits, `awq`": by_awq,
    "4 bits, `gptq`": by_gptq,
    "8 bits, activations too, plain": plain_w8a8,
    "8 bits, activations too, `smoothquant`": by_smoothquant,
}


def told(name: str) -> list[float]:
    """The three figures of a method's row, in per cent."""
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == name and len(cells) == 4:
            return [float(cell) for cell in cells[1:]]
    raise AssertionError(f"no row for {name}")


@pytest.mark.parametrize("name", METHODS)
def test_the_error_of_a_layer_is_what_the_documentation_tells(name: str, layers: list[Layer]) -> None:
    found = []
    for weight, x, other in layers:
        exact = other @ weight.T
        found.append(100 * float((METHODS[name](weight, x, other) - exact).norm() / exact.norm()))
    assert found == pytest.approx(told(name), rel=0.06)
