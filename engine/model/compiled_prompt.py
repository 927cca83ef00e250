"""Prompts times weights that are held as codes: the compiled kernels widen a run of rows, torch multiplies by them."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.engine.model.compiled_weights import LinearTable
from octavo.engine.quant.base import ROW_BUCKETS, Format, Packed, WeightRef
from octavo.kernels.cpu.fields import Form, Linear

_RUN = 1 << 22  # weights widened at a time: 8 MiB
_LEAST = 16  # rows the kernels widen

Widen = Callable[[int, int, int, Tensor], bool]


class WidenedProducts:
    """Gives the weights of a model that are held as codes a product for what `Format.linear` alone would serve.

    `widen` (address of a Linear, first row, row length, bfloat16 [rows, in] to fill) says whether it could.
    """

    def __init__(self, table: LinearTable, widen: Widen) -> None:
        self._table = table
        self._widen = weakref.WeakMethod(widen)  # its object holds this one
        self._room = torch.empty(0, dtype=torch.bfloat16)

    def enter(self, refs: list[WeightRef]) -> None:
        """Puts it where no kernel, or one for any number of rows, stands in the tables of products."""
        own = weakref.ref(self)  # the weights must not keep alive what keeps them alive
        for ref, row, address in zip(refs, self._table.rows, self._table.addresses):
            if row[Linear.FORM] == Form.PLAIN or ref.spec.out_dim < _LEAST:
                continue
            packed = ref.acquire()
            before = packed.products or (None,) * (len(ROW_BUCKETS) + 1)
            run = _Run(own, ref.format, address, row[Linear.FORM] == Form.INT8, before[-1])
            few = sum(limit <= _LEAST for limit in ROW_BUCKETS)
            packed.products = tuple(
                made if made is not None and bucket < few else run for bucket, made in enumerate(before)
            )
            ref.release()

    def product(self, x: Tensor, packed: Packed, address: int, scaled: bool) -> Tensor | None:
        """x [T, in] times the weight whose Linear is at an address; None where the kernels are not there."""
        widen = self._widen()
        if widen is None:
            return None
        rows, width = packed.planes["codes"].shape[0], packed.in_dim
        y = x.new_empty((x.shape[0], rows))
        count = min(rows, max(_LEAST, _RUN // width))
        if self._room.numel() < count * width:
            self._room = torch.empty(count * width, dtype=torch.bfloat16)
        weight = self._room[: count * width].view(count, width)
        for run in range(0, rows, count):
            begin = min(run, rows - count)  # the last run is whole, too
            if not widen(address, begin, width, weight):
                return None
            y[:, begin : begin + count] = F.linear(x, weight)
        if scaled:
            y = (y * packed.planes["scale"].t()).to(packed.dtype)
        return y if packed.bias is None else y.add_(packed.bias)


class _Run:
    """One weight's product, with the signature of Product.run."""

    def __init__(
        self,
        products: weakref.ref[WidenedProducts],
        form: Format,
        address: int,
        scaled: bool,
        before: Callable[[Tensor, Packed], Tensor] | None,
    ) -> None:
        self._products, self._form, self._address = products, form, address
        self._scaled, self._before = scaled, before

    def __call__(self, x: Tensor, packed: Packed) -> Tensor:
        products = self._products()
        y = None if products is None else products.product(x, packed, self._address, self._scaled)
        if y is not None:
            return y
        return self._form.linear(x, packed) if self._before is None else self._before(x, packed)
