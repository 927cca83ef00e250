"""The first layers of a decoder as a model of their own, sharing its weights and its cache."""

from __future__ import annotations

from torch import Tensor

from octavo.engine.attention.base import AttentionStep
from octavo.engine.model.base import CausalModel
from octavo.engine.model.decoder import Decoder


class FirstLayers(CausalModel):
    """Layers [0, layers) of a decoder, then its final norm and head (Elhoushi et al., "LayerSkip", 2024)."""

    def __init__(self, model: Decoder, layers: int) -> None:
        self._model, self._layers = model, layers
        self.name = f"{model.name}, first {layers} layers"
        self.architecture = model.architecture
        self.vocab_size = model.vocab_size
        self.max_positions = model.max_positions
        self.device, self.dtype = model.device, model.dtype
        self.cache_groups = model.cache_groups
        self.attn_specs = model.attn_specs
        self.weight_bytes = model.weight_bytes * layers // max(1, len(model.attn_specs))
        self.capturable = model.capturable

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        step: AttentionStep,
        *,
        first_layer: int = 0,
        last_layer: int | None = None,
        hidden: Tensor | None = None,
    ) -> Tensor:
        last = self._layers if last_layer is None else min(last_layer, self._layers)
        hidden = self._model.forward(
            token_ids, positions, step, first_layer=first_layer, last_layer=last, hidden=hidden
        )
        return self._model.final_norm(hidden) if last == self._layers else hidden

    def logits(self, hidden: Tensor) -> Tensor:
        return self._model.logits(hidden)

    def greedy(self, hidden: Tensor) -> tuple[Tensor, Tensor] | None:
        return self._model.greedy(hidden)
