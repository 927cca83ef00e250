"""What the runner needs of a model, whichever way it is built (our decoder, a transformers class, a fake in tests)."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from octavo.engine.attention.base import AttentionStep, AttnSpec, CacheGroup


class CausalModel(ABC):
    """A decoder-only language model over a flat batch of tokens and a paged cache."""

    name: str  # shown to users: folder or repository name
    architecture: str  # the checkpoint's own word, such as "LlamaForCausalLM"
    vocab_size: int  # width of the scores; may exceed the tokenizer's
    max_positions: int  # longest context the checkpoint was made for, rope scaling included
    device: torch.device
    dtype: torch.dtype
    cache_groups: tuple[CacheGroup, ...]
    attn_specs: tuple[AttnSpec, ...]  # by layer
    weight_bytes: int
    notices: tuple[str, ...] = ()  # what the user should know of this checkpoint, one sentence each
    capturable: bool = False  # forward may be captured into a CUDA graph

    @abstractmethod
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
        """Runs layers [first_layer, last_layer) over int64 token_ids [T] at int64 positions [T].

        Begins from `hidden` [T, H] instead of the embedding if first_layer > 0. Returns hidden states [T, H], the
        final norm applied only after the last layer. Writes this step's keys and values through `step`.
        """

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [N, vocab_size] from final hidden states [N, H], scaling and soft-cap applied."""

    def greedy(self, hidden: Tensor) -> tuple[Tensor, Tensor] | None:
        """Each row's highest score, float32 [N], and its lowest id, int64 [N], from final hidden states [N, H], as
        `logits` would give them but without writing them; NaN where a row holds one. None where only `logits` can."""
        return None
