"""The four ways to round a layer, behind one function: factors folded first, then every linear on its grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from octavo.engine.quant.calibrate.awq import search_scales, search_shares
from octavo.engine.quant.calibrate.gptq import gptq
from octavo.engine.quant.calibrate.grid import Grid, Rounded
from octavo.engine.quant.calibrate.inputs import Inputs
from octavo.engine.quant.calibrate.layer import SLOTS, Layer, Linear
from octavo.engine.quant.calibrate.settings import Settings
from octavo.engine.quant.calibrate.smooth import smooth_scales
from octavo.engine.quant.dynamic import round_tokens

SAMPLES = 512  # tokens on which candidates are compared and errors are told


@dataclass(slots=True)
class LayerResult:
    """A layer's linears rounded, and by how much each one's results are off for the sample, relative to their size."""

    rounded: dict[str, Rounded] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)


def round_layer(layer: Layer, inputs: Mapping[str, Inputs], settings: Settings, stored: torch.dtype) -> LayerResult:
    """Rounds all linears of a layer, whose weights become what the codes stand for. `inputs` by slot; norms are stored
    in `stored`."""
    grid = settings.grid(torch.float16 if settings.layout == "awq" else stored)
    samples = {slot: inputs[slot].sample for slot in SLOTS}
    exact = {name: (linear.weight.clone(), samples[linear.slot]) for name, linear in layer.linears.items()}
    factors = _fold(layer, inputs, settings, grid, stored)
    result = LayerResult()
    for slot in SLOTS:
        linears = layer.reading(slot)
        seen = samples[slot] / factors[slot] if slot in factors else samples[slot]
        result.rounded |= _round(linears, seen, inputs[slot], settings, grid)
        for linear in linears:
            linear.weight = result.rounded[linear.name].decode()
            weight, x = exact[linear.name]
            result.errors[linear.name] = _error(linear, x, seen, weight, settings)
    return result


def rounded_activations(settings: Settings) -> bool:
    """Whether a model rounded this way rounds what its linears read."""
    return settings.layout == "int-quantized"


def round_activations(x: Tensor) -> Tensor:
    """x [T, in] as int8 with a scale a token stands for it."""
    codes, scales = round_tokens(x)
    return (codes.float() * scales).to(x.dtype)


def _fold(
    layer: Layer, inputs: Mapping[str, Inputs], settings: Settings, grid: Grid, stored: torch.dtype
) -> dict[str, Tensor]:
    """By slot, what the inputs are divided by now. All factors are found before the first is folded."""
    if settings.method not in ("awq", "smoothquant"):
        return {}
    found = {}
    for slot in SLOTS:
        if not layer.folds(slot):
            continue
        parts = [linear.weight[rows] for linear in layer.reading(slot) for rows in linear.rows.values()]

        def tie(scales: Tensor, slot: str = slot) -> Tensor:
            return layer.tied(slot, scales)

        if settings.method == "awq":
            found[slot], _ = search_scales(parts, inputs[slot].mean, inputs[slot].sample, grid, tie)
        else:
            found[slot] = smooth_scales(parts, inputs[slot].largest, settings.alpha, tie)
    return {slot: layer.fold(slot, scales, stored) for slot, scales in found.items()}


def _round(linears: list[Linear], sample: Tensor, inputs: Inputs, settings: Settings, grid: Grid) -> dict[str, Rounded]:
    if settings.method == "gptq":
        assert inputs.gram is not None
        together = gptq(
            torch.cat([linear.weight for linear in linears]), inputs.gram, grid, act_order=settings.act_order
        )
        return dict(zip((linear.name for linear in linears), _split(together, [len(one.weight) for one in linears])))
    found = {}
    for linear in linears:
        share: Tensor | float = 1.0
        if settings.method == "awq":
            share = search_shares(linear.weight, sample, grid)
            for part in ("attn.q", "attn.k"):  # what becomes a score is better left whole (the authors' code)
                if part in linear.rows:
                    share[linear.rows[part]] = 1.0
        found[linear.name] = grid.nearest(linear.weight, share)
    return found


def _split(rounded: Rounded, rows: list[int]) -> list[Rounded]:
    pieces = zip(rounded.codes.split(rows), rounded.scale.split(rows), rounded.zero.split(rows))
    return [Rounded(codes, scale, zero) for codes, scale, zero in pieces]


def _error(linear: Linear, x: Tensor, seen: Tensor, exact: Tensor, settings: Settings) -> float:
    """Relative error of a linear's results: what it reads now times what it is now, against what it was."""
    if rounded_activations(settings):
        seen = round_activations(seen)
    wanted = x @ exact.T
    found = (seen @ linear.weight.T).mul_(linear.divided)
    return float((found - wanted).norm() / wanted.norm().clamp(min=1e-30))
