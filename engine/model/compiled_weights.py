"""What the CPU's compiled kernels are told of one weight, and which formats they read as they are stored."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from octavo.engine.quant.base import Format, Packed, WeightRef
from octavo.engine.quant.codes import Code, SignedCode, UnsignedCode
from octavo.engine.quant.grouped import FittedFormat, GroupedFormat
from octavo.engine.quant.plain import PlainFormat
from octavo.kernels.cpu.fields import NATURAL, PARTED, Form, Linear

_BLOCK = 32  # weights that kernels read at once
_WHOLE_ROW = 32  # a shift by so many bits leaves nothing of the number of any block


def form_of(form: Format) -> int | None:
    """The kernels' form (fields.Form) for a weight's format, or None if they do not read it."""
    if type(form) is PlainFormat:
        return Form.PLAIN
    if not isinstance(form, GroupedFormat) or type(form) not in (GroupedFormat, FittedFormat):
        return None  # those that come of it multiply otherwise
    if form.ordered or form.outer:
        return None
    code: Code = form.code
    if isinstance(code, SignedCode):
        return None if form.group or form.zeros or form.shifts else Form.INT8
    blocks = form.group // _BLOCK
    groups_fit = form.group % _BLOCK == 0 and blocks & (blocks - 1) == 0
    return Form.INT4 if isinstance(code, UnsignedCode) and code.bits == 4 and groups_fit else None


class LinearTable:
    """Rows of Linear for the weights of a model, and the memory they point to beside the weights themselves."""

    def __init__(self, refs: Sequence[WeightRef]) -> None:
        self.rows = np.zeros((len(refs), len(Linear)), dtype=np.int64)
        self._kept: list[Tensor] = []
        with torch.inference_mode():
            for ref, row in zip(refs, self.rows):
                self._describe(ref.format, ref.acquire(), row)
                ref.release()

    @property
    def addresses(self) -> list[int]:
        """Of every weight's row."""
        return [row.ctypes.data for row in self.rows]

    def _describe(self, form: Format, packed: Packed, row: np.ndarray) -> None:
        found = form_of(form)
        assert found is not None
        rows = packed.planes["weight" if found == Form.PLAIN else "codes"]
        row[Linear.FORM], row[Linear.ROWS] = found, rows.data_ptr()
        row[Linear.STRIDE] = rows.stride(0) * rows.element_size()
        row[Linear.BIAS] = 0 if packed.bias is None else packed.bias.data_ptr()
        row[Linear.ORDER] = NATURAL
        if found == Form.PLAIN:
            row[Linear.ORDER] = PARTED if rows.dtype == torch.bfloat16 else NATURAL
        elif found == Form.INT8:
            scales = packed.planes["scale"].float().contiguous()
            row[Linear.SCALES], row[Linear.SCALE_STRIDE] = self._keep(scales), scales.element_size()
        else:
            assert isinstance(form, GroupedFormat)
            row[Linear.ORDER] = PARTED
            pairs = scales_and_shifts(form, packed.planes)
            row[Linear.SCALES], row[Linear.SCALE_STRIDE] = self._keep(pairs), pairs.stride(0) * pairs.element_size()
            row[Linear.NARROW] = pairs.dtype == torch.bfloat16
            row[Linear.GROUP_BITS] = (form.group // _BLOCK).bit_length() - 1 if form.group else _WHOLE_ROW

    def _keep(self, tensor: Tensor) -> int:
        self._kept.append(tensor)
        return tensor.data_ptr()


def scales_and_shifts(form: GroupedFormat, planes: dict[str, Tensor]) -> Tensor:
    """[out, groups, 2] of unsigned codes: weight = code * scale + shift, bfloat16 if that holds both exactly, else
    float32. The planes of which it is made become views of it: nothing of them is kept twice."""
    assert isinstance(form.code, UnsignedCode)
    scale, moved = planes["scale"], form.zeros or form.code.offset > 0
    exact = scale.dtype == torch.bfloat16 and not form.zeros and not (form.shifts and moved)
    pairs = torch.empty((*scale.shape, 2), dtype=scale.dtype if exact else torch.float32)
    pairs[..., 0] = scale
    pairs[..., 1] = planes["shift"] if form.shifts else 0
    if moved:  # as many codes mean zero
        pairs[..., 1] -= pairs[..., 0] * (planes["zero"] if form.zeros else form.code.offset)
    planes["scale"] = pairs[..., 0]
    if form.shifts and not moved:
        planes["shift"] = pairs[..., 1]
    return pairs
