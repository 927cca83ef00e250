"""Mixtures of GGUF types by the names that files carry, for models with random weights: what a benchmark loads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from octavo.engine.errors import LoadError
from octavo.engine.model.parameters import part_shapes
from octavo.engine.model.spec import ModelSpec
from octavo.engine.quant.base import Format
from octavo.engine.quant.blocks import block_format


def mixed_parts(name: str, spec: ModelSpec) -> dict[str, Format]:
    """The format of every matrix of a model. Raises LoadError where rows do not consist of whole blocks."""
    held: dict[str, Format] = {}
    for part, shape in part_shapes(spec).items():
        base, what = part.rsplit(".", 1)
        if what != "weight" or len(shape) < 2 or base.endswith(".router"):
            continue
        kind = MIXES[name](base, len(spec.layers), spec.tied)
        form = block_format(kind, shape)
        if form is None:
            raise LoadError(
                f"The mixture {name} needs rows of whole blocks; those of {base} have {shape[-1]} columns.",
                remedy="Measure another shape.",
            )
        held[base] = form
    return held


def _with_six_bits(most: str, part: str, layers: int, tied: bool) -> str:
    """`most`, with Q6_K for the head and in about half of the layers for values and the second product of the MLP: the
    first and last eighth and every third between."""
    if part == ("embed" if tied else "head"):
        return "Q6_K"
    if part.endswith((".attn.v", ".down")):
        index, eighth = int(part.split(".")[1]), layers // 8
        if index < eighth or index >= 7 * layers // 8 or (index - eighth) % 3 == 2:
            return "Q6_K"
    return most


MIXES: dict[str, Callable[[str, int, bool], str]] = {
    "q4_0": lambda part, layers, tied: "Q4_0",
    "q4_k_m": partial(_with_six_bits, "Q4_K"),
    "q5_k_m": partial(_with_six_bits, "Q5_K"),
    "q8_0": lambda part, layers, tied: "Q8_0",
}
