"""A text's hidden states on their way through the model, one layer at a time by the model's own decoder.

They stay in the host's memory between layers; on the device there is one layer and one batch of windows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from octavo.engine.attention.base import AttentionStep, LayerKV, Layout
from octavo.engine.attention.torch_backend import TorchBackend
from octavo.engine.model.decoder import Decoder
from octavo.engine.model.ops import TextbookOps
from octavo.engine.model.parameters import LayerWeights, Weights
from octavo.engine.model.rotary import cos_sin_table
from octavo.engine.model.spec import ModelSpec
from octavo.engine.quant.base import WeightRef
from octavo.engine.quant.calibrate.inputs import Inputs
from octavo.engine.quant.calibrate.layer import Layer
from octavo.engine.quant.plain import PlainFormat

BATCH_TOKENS = 8192  # computed at once
Change = Callable[[Tensor], Tensor]


class Walk:
    """Hidden states [windows, length, H] through layers; windows do not see each other."""

    def __init__(self, spec: ModelSpec, length: int, *, device: torch.device, dtype: torch.dtype) -> None:
        self.spec = spec
        self.length = length
        self.device = device
        self.dtype = dtype
        self.batch = max(1, BATCH_TOKENS // length)
        self._tables = [cos_sin_table(rope, length, device) for rope in spec.ropes]
        self._backend = TorchBackend()

    def embed(self, embedding: Tensor, windows: Tensor) -> Tensor:
        """The first layer's inputs for token ids [windows, length], in the host's memory."""
        scale = torch.tensor(self.spec.embed_scale, dtype=self.dtype).item()  # as the decoder rounds it
        return torch.nn.functional.embedding(windows, embedding.to(self.dtype)).mul_(scale)

    def through(
        self,
        layer: Layer,
        hidden: Tensor,
        gather: Mapping[str, Inputs] | None = None,
        change: Change | None = None,
    ) -> Tensor:
        """The layer's outputs for its inputs, with the weights it has now. `gather` takes what the linears of a slot
        read; `change` replaces what every linear reads, [T, in]."""
        decoder = self._decoder(layer, gather or {}, change)
        out = torch.empty_like(hidden)
        for begin in range(0, len(hidden), self.batch):
            batch = hidden[begin : begin + self.batch]
            flat = batch.to(self.device).flatten(0, 1)
            step, positions = self._step(len(batch), decoder)
            found = decoder.forward(positions, positions, step, last_layer=1, hidden=flat)
            out[begin : begin + self.batch] = found.view(batch.shape)
        return out

    def _decoder(self, layer: Layer, gather: Mapping[str, Inputs], change: Change | None) -> Decoder:
        kind = self.spec.layers[layer.index]
        one = replace(self.spec, layers=(kind,), vocab_size=1, tied=True)
        weights = Weights.allocate(one, PlainFormat(), device=self.device, dtype=self.dtype, merged=False)
        for part, values in layer.parts():
            weights.fill(f"layers.0.{part}", values)
        _watch(weights.layers[0], gather, change)
        weights.layers.append(weights.layers[0])  # what is not the last layer is not followed by the last norm
        return Decoder(
            replace(one, layers=(kind, kind)),
            weights,
            TextbookOps(),
            self._tables,
            name="",
            device=self.device,
            dtype=self.dtype,
            context_length=self.length,
        )

    def _step(self, rows: int, decoder: Decoder) -> tuple[AttentionStep, Tensor]:
        """Each row one page that holds its whole window, behind the page that nobody reads."""
        length, device = self.length, self.device
        groups = decoder.cache_groups
        pages = torch.arange(1, rows + 1, device=device)
        positions = torch.arange(length, device=device).repeat(rows)
        layout = Layout(
            q_start=torch.arange(0, rows * length + 1, length, dtype=torch.int32, device=device),
            q_pos=positions,
            kv_len=torch.full((rows,), length, dtype=torch.int32, device=device),
            tables=(pages.int().unsqueeze(1),) * len(groups),
            write_slots=(torch.arange(length, (rows + 1) * length, device=device),) * len(groups),
            page_size=length,
            num_rows=rows,
            num_tokens=rows * length,
            num_decode_rows=0,
            max_q=length,
            max_kv=length,
            q_lens=(length,) * rows,
            kv_lens=(length,) * rows,
        )
        shape = (rows + 1, self.spec.kv_heads, length, self.spec.head_size)
        k, v = (torch.zeros(shape, dtype=self.dtype, device=device) for _ in range(2))
        plan = self._backend.plan(layout, groups)
        return AttentionStep(self._backend, plan, (LayerKV(k, v, 0),) * 2), positions


class _Watched(WeightRef):
    """A linear whose inputs are seen, and perhaps changed, before it reads them."""

    __slots__ = ("_change", "_seen")

    def __init__(self, ref: WeightRef, seen: Inputs | None, change: Change | None) -> None:
        super().__init__(ref.spec, ref.format, ref.acquire())
        self._seen = seen
        self._change = change

    def __call__(self, x: Tensor) -> Tensor:
        if self._seen is not None:
            self._seen.add(x)
        return super().__call__(x if self._change is None else self._change(x))


def _watch(layer: LayerWeights, gather: Mapping[str, Inputs], change: Change | None) -> None:
    # linears side by side read the same, which is to be gathered once
    for slot in ("qkv", "gate_up"):
        refs: tuple[WeightRef, ...] = getattr(layer, slot)
        setattr(
            layer, slot, tuple(_Watched(ref, None if n else gather.get(slot), change) for n, ref in enumerate(refs))
        )
    layer.o = _Watched(layer.o, gather.get("o"), change)
    layer.down = _Watched(layer.down, gather.get("down"), change)
