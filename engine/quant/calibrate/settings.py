"""What `octavo quantize` can be asked for, and which of it no reader of checkpoints would understand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch

from octavo.engine.load.write_packed import Layout
from octavo.engine.quant.calibrate.errors import QuantizeError
from octavo.engine.quant.calibrate.grid import Grid
from octavo.engine.quant.calibrate.smooth import ALPHA

Method = Literal["awq", "gptq", "smoothquant", "rtn"]
FileFormat = Literal["compressed-tensors", "awq"]
METHODS: tuple[str, ...] = get_args(Method)
FILE_FORMATS: tuple[str, ...] = get_args(FileFormat)
GROUP_SIZES = (128, 64, 32)


@dataclass(frozen=True, slots=True)
class Settings:
    """One way to round a model. `bits`, `group` (0: the whole row) and `symmetric` are chosen by `resolved` if None."""

    method: Method = "awq"
    bits: int | None = None
    group: int | None = None
    symmetric: bool | None = None
    file_format: FileFormat = "compressed-tensors"
    act_order: bool = True  # GPTQ only
    alpha: float = ALPHA  # SmoothQuant only

    def checked(self) -> Settings:
        """Itself with all defaults but the group size. Raises QuantizeError for what cannot be had together."""
        smooth, packed_awq = self.method == "smoothquant", self.file_format == "awq"
        bits = self.bits if self.bits is not None else 8 if smooth else 4
        symmetric = self.symmetric if self.symmetric is not None else bits == 8
        for name, value, known in (
            ("method", self.method, METHODS),
            ("format", self.file_format, FILE_FORMATS),
            ("bits", bits, (4, 8)),
            ("group-size", self.group or 0, (*GROUP_SIZES, 0)),
        ):
            if value not in known:
                raise QuantizeError(
                    f"--{name} is {value!r}.", remedy=f"Use one of {', '.join(str(option) for option in known)}."
                )
        if not 0 < self.alpha < 1:
            raise QuantizeError(f"--alpha is {self.alpha}.", remedy="Use a number between 0 and 1, such as 0.5.")
        if smooth and (bits != 8 or not symmetric or self.group):
            raise QuantizeError(
                "SmoothQuant rounds weights and activations to 8 bits, symmetric, with one scale a row; no reader "
                "knows it otherwise.",
                remedy="Leave out --bits, --group-size and --asymmetric, or use --method awq or gptq.",
            )
        if smooth and packed_awq:
            raise QuantizeError(
                "AWQ files cannot say that activations are rounded.", remedy="Use --format compressed-tensors."
            )
        if packed_awq and bits != 4:
            raise QuantizeError("AWQ files hold 4 bits.", remedy="Use --bits 4 or --format compressed-tensors.")
        if packed_awq and symmetric:
            raise QuantizeError(
                "AWQ files always have zero points.", remedy="Use --asymmetric or --format compressed-tensors."
            )
        if bits == 8 and not symmetric:
            raise QuantizeError(
                "8-bit weights gain nothing from zero points, for which engines have no fast kernels.",
                remedy="Use --symmetric.",
            )
        return replace(self, bits=bits, symmetric=symmetric)

    def resolved(self, widths: Mapping[str, tuple[int, int]]) -> Settings:
        """`checked`, and with a group size that divides the rows of all linears, given as (out, in) by name."""
        settings = self.checked()
        if settings.file_format == "awq":
            odd = next((name for name, (out, _) in widths.items() if out % 8), None)
            if odd is not None:
                raise QuantizeError(
                    f"AWQ files hold eight rows together, and {odd} has {widths[odd][0]}.",
                    remedy="Use --format compressed-tensors.",
                )
        fitting = [size for size in GROUP_SIZES if all(width % size == 0 for _, width in widths.values())]
        group = settings.group
        if group is None:
            group = 0 if settings.bits == 8 else next(iter(fitting), None)
        if group is None or (group and group not in fitting):
            size = group or GROUP_SIZES[-1]
            odd = next(name for name, (_, width) in widths.items() if width % size)
            instead = f"--group-size {fitting[0]}" if fitting else "--bits 8, which takes whole rows"
            raise QuantizeError(
                f"Groups of {size} do not divide the {widths[odd][1]} columns of {odd}.", remedy=f"Use {instead}."
            )
        odd = next((name for name, (_, width) in widths.items() if width % 8), None)
        if odd is not None:
            raise QuantizeError(
                f"The {widths[odd][1]} columns of {odd} do not fill whole words of packed weights.",
                remedy="Set model.quantization instead, which rounds rows of any length while a model is loaded.",
            )
        return replace(settings, group=group)

    @property
    def layout(self) -> Layout:
        """How the rounded weights are stored."""
        if self.file_format == "awq":
            return "awq"
        return "int-quantized" if self.method == "smoothquant" else "pack-quantized"

    def grid(self, stored: torch.dtype) -> Grid:
        """What weights are rounded to, for settings that are resolved, if plain weights are stored in `stored`."""
        if self.bits is None or self.group is None or self.symmetric is None:
            raise ValueError("settings are to be resolved first")
        return Grid(self.bits, self.group, self.symmetric, stored)
