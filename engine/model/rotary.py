"""Rotary position embeddings: what a checkpoint says about them, the frequencies, and the table of cosines and sines.

Frequencies are fixed when a model is loaded, from its context length; nothing here looks at a running batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from octavo.engine.errors import ModelConfigError, UnsupportedModelError

ROPE_KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
_ALIASES = {"su": "longrope"}  # the first name of longrope, in Phi-3's early checkpoints


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """One kind of rotary embedding. Lengths in tokens; unused fields keep their defaults."""

    kind: str
    theta: float
    rot_dim: int  # channels of a head that are rotated, always even
    max_positions: int  # the checkpoint's max_position_embeddings
    original_max: int  # positions the model was first trained on
    factor: float = 1.0
    attention_factor: float | None = None  # given: replaces the formula that yarn and longrope have for it
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()

    @classmethod
    def from_parameters(
        cls,
        parameters: Mapping[str, Any],
        *,
        head_size: int,
        max_positions: int,
        theta: float,
        original_max: int | None = None,
    ) -> RopeSpec:
        """Reads a `rope_parameters` or `rope_scaling` dictionary; `theta` and `original_max` are what it may leave out.

        Raises UnsupportedModelError naming what was found.
        """
        found = parameters.get("rope_type") or parameters.get("type") or "default"
        kind = _ALIASES.get(str(found), str(found))
        if kind not in ROPE_KINDS:
            raise UnsupportedModelError(
                f"The config asks for rotary embeddings of rope_type {found!r}; supported are {', '.join(ROPE_KINDS)}."
            )
        reader = _Reader(parameters, kind)
        rot_dim = int(head_size * reader.number("partial_rotary_factor", 1.0))
        if rot_dim <= 0 or rot_dim % 2 or rot_dim > head_size:
            raise ModelConfigError(
                f"The config rotates {rot_dim} of {head_size} channels of a head; an even number is needed."
            )
        trained = int(reader.number("original_max_position_embeddings", original_max or max_positions))
        if kind in ("yarn", "longrope"):
            factor = reader.number("factor", max_positions / trained)
        else:
            factor = reader.needed("factor") if kind != "default" else 1.0
        if kind == "dynamic" and rot_dim <= 2:
            raise ModelConfigError(f"rope_type 'dynamic' needs more than {rot_dim} rotated channels.")
        spec = cls(
            kind=kind,
            theta=reader.number("rope_theta", theta),
            rot_dim=rot_dim,
            max_positions=max_positions,
            original_max=trained,
            factor=factor,
            attention_factor=reader.optional("attention_factor"),
            beta_fast=reader.number("beta_fast", 32.0),
            beta_slow=reader.number("beta_slow", 1.0),
            mscale=reader.optional("mscale"),
            mscale_all_dim=reader.optional("mscale_all_dim"),
            truncate=bool(parameters.get("truncate", True)),
            low_freq_factor=reader.number("low_freq_factor", 1.0),
            high_freq_factor=reader.number("high_freq_factor", 4.0),
            short_factor=reader.factors("short_factor", rot_dim // 2),
            long_factor=reader.factors("long_factor", rot_dim // 2),
        )
        spec._check()
        return spec

    def _check(self) -> None:
        """Refuses values that the formulas cannot take."""
        wrong = None
        if self.theta <= 1:
            wrong = f"rope_theta of {self.theta:g}; more than 1 is needed"
        elif self.kind in ("yarn", "longrope", "llama3") and self.original_max <= 1:
            wrong = f"original_max_position_embeddings of {self.original_max}; more than 1 is needed"
        elif self.kind == "llama3" and self.high_freq_factor <= self.low_freq_factor:
            wrong = f"high_freq_factor of {self.high_freq_factor:g}; more than the low_freq_factor is needed"
        elif self.factor < 1 and self.kind in ("linear", "dynamic", "llama3"):
            wrong = f"factor of {self.factor:g}; at least 1 is needed"
        if wrong:
            raise ModelConfigError(f"The config's rope_type {self.kind!r} has a {wrong}.")

    @property
    def extended_max(self) -> int:
        """Longest context this embedding was made for, scaling included. A linear factor is taken as already counted
        in `max_position_embeddings`, which most checkpoints do."""
        if self.kind == "dynamic":
            return int(self.max_positions * self.factor)
        if self.kind == "yarn":
            return max(self.max_positions, int(self.original_max * self.factor))
        return self.max_positions


@dataclass(frozen=True, slots=True)
class _Reader:
    """Typed access to a dictionary out of a config file."""

    parameters: Mapping[str, Any]
    kind: str

    def optional(self, key: str) -> float | None:
        value = self.parameters.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise ModelConfigError(
                f"The config's {key} of rope_type {self.kind!r} is {value!r}; a number above zero is needed."
            )
        return float(value)

    def number(self, key: str, default: float) -> float:
        value = self.optional(key)
        return float(default) if value is None else value

    def needed(self, key: str) -> float:
        value = self.optional(key)
        if value is None:
            raise ModelConfigError(f"The config's rope_type {self.kind!r} needs {key}, which is not there.")
        return value

    def factors(self, key: str, length: int) -> tuple[float, ...]:
        if self.kind != "longrope":
            return ()
        value = self.parameters.get(key)
        if not isinstance(value, list | tuple) or not all(
            isinstance(x, int | float) and 0 < x < math.inf for x in value
        ):
            raise ModelConfigError(f"The config's {key} is not a list of numbers above zero.")
        if len(value) != length:
            raise ModelConfigError(f"The config's {key} has {len(value)} numbers; {length} are needed.")
        return tuple(float(x) for x in value)


def inverse_frequencies(spec: RopeSpec, context_length: int) -> tuple[Tensor, float]:
    """float32 [rot_dim / 2] angles per position, and the factor on cosines and sines.

    Dynamic and longrope depend on `context_length`, which stands for the longest row a batch could have.
    """
    return _FORMULAS[spec.kind](spec, context_length)


def cos_sin_table(spec: RopeSpec, context_length: int, device: torch.device | str = "cpu") -> Tensor:
    """float32 [context_length, rot_dim]: rot_dim / 2 cosines, then as many sines, scaling factor included."""
    frequencies, factor = inverse_frequencies(spec, context_length)
    positions = torch.arange(context_length, dtype=torch.float32)
    angles = torch.outer(positions, frequencies)
    table = torch.cat((angles.cos(), angles.sin()), dim=-1)
    return (table * factor).to(device)


def _powers(spec: RopeSpec, theta: float | None = None) -> Tensor:
    """theta^(2i/d) for i = 0 .. d/2-1 (RoFormer, arXiv 2104.09864)."""
    exponents = torch.arange(0, spec.rot_dim, 2, dtype=torch.float32) / spec.rot_dim
    return (spec.theta if theta is None else theta) ** exponents


def _default(spec: RopeSpec, context_length: int) -> tuple[Tensor, float]:
    return 1.0 / _powers(spec), 1.0


def _linear(spec: RopeSpec, context_length: int) -> tuple[Tensor, float]:
    """Position interpolation (arXiv 2306.15595)."""
    return 1.0 / _powers(spec) / spec.factor, 1.0


def _dynamic(spec: RopeSpec, context_length: int) -> tuple[Tensor, float]:
    """NTK-aware scaling whose base grows with the length (YaRN, arXiv 2309.00071, appendix B.1)."""
    length = max(context_length, spec.max_positions)
    stretch = spec.factor * length / spec.max_positions - (spec.factor - 1)
    theta = spec.theta * stretch ** (spec.rot_dim / (spec.rot_dim - 2))
    return 1.0 / _powers(spec, theta), 1.0


def _llama3(spec: RopeSpec, context_length: int) -> tuple[Tensor, float]:
    """Long wavelengths divided by the factor, short ones kept, a linear blend between (Llama 3.1)."""
    frequencies = 1.0 / _powers(spec)
    turns = spec.original_max * frequencies / (2 * math.pi)  # full turns within the first training length
    blend = (turns - spec.low_freq_factor) / (spec.high_freq_factor - spec.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return frequencies / spec.factor * (1 - blend) + frequencies * blend, 1.0


def _yarn(spec: RopeSpec, context_length: int) -> tuple[Tensor, float]:
    """NTK by parts with a temperature (YaRN, arXiv 2309.00071, sections 3.2 and 3.3)."""
    factor = spec.factor
    low, high = yarn_ramp(spec)
    ramp = ((torch.arange(spec.rot_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0.0, 1.0)
    powers = _powers(spec)
    frequencies = 1.0 / (factor * powers) * ramp + 1.0 / powers * (1 - ramp)

    def temperature(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if spec.attention_factor is not None:
        return frequencies, spec.attention_factor
    if spec.mscale and spec.mscale_all_dim:
        return frequencies, temperature(spec.mscale) / temperature(spec.mscale_all_dim)
    return frequencies, temperature(1.0)


def yarn_ramp(spec: RopeSpec) -> tuple[float, float]:
    """Channel pairs between which yarn goes from "kept" to "interpolated" (YaRN, section 3.2)."""

    def pair_with(turns: float) -> float:
        return spec.rot_dim * math.log(spec.original_max / (turns * 2 * math.pi)) / (2 * math.log(spec.theta))

    low, high = pair_with(spec.beta_fast), pair_with(spec.beta_slow)
    if spec.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, spec.rot_dim - 1)
    return low, high if high != low else high + 0.001  # one pair wide would divide by zero


def _longrope(spec: RopeSpec, context_length: int) -> tuple[Tensor, float]:
    """A searched factor for every channel pair, one set for short and one for long contexts (arXiv 2402.13753)."""
    is_long = context_length > spec.original_max
    factors = torch.tensor(spec.long_factor if is_long else spec.short_factor, dtype=torch.float32)
    if spec.attention_factor is not None:
        temperature = spec.attention_factor
    elif spec.factor <= 1.0:
        temperature = 1.0
    else:
        temperature = math.sqrt(1 + math.log(spec.factor) / math.log(spec.original_max))
    return 1.0 / (factors * _powers(spec)), temperature


_FORMULAS = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
