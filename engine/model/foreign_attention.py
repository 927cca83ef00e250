"""Octavo's paged attention as a transformers attention function and cache, and a trial call that learns what is asked.

A transformers class hands its keys and values to `cache.update` and then calls the attention function it was configured
with. Ours stores them in the pages and pins the step to the keys it gives back: the class sees one flat row of tokens
and never another request. (Keyword arguments could carry the step too, but not every class passes those on.) The module
is imported only where such a model is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, Cache

from octavo.engine.attention.base import AttentionStep, AttnSpec
from octavo.engine.errors import UnsupportedModelError

NAME = "octavo"  # the attention implementation's name; no mask is registered for it, so transformers makes none
CALL = "octavo_call"  # the attribute of the keys by which the cache speaks to the attention function

# What classes pass along that changes nothing here: positions stand in the step's layout, nothing is masked or trained.
# fmt: off
HARMLESS = frozenset((
    "position_ids", "position_embeddings", "dropout", "is_causal", "use_cache", "cache_position", "implementation",
    "output_attentions", "output_hidden_states", "output_router_logits", "return_dict", "logits_to_keep",
    "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "num_items_in_batch", "deterministic",
    "target_dtype",
))
# fmt: on


@dataclass(frozen=True, slots=True)
class PagedCall:
    """One layer's turn in a step."""

    step: AttentionStep
    layer: int
    spec: AttnSpec

    def attend(self, query: Tensor) -> Tensor:
        return self.step.attend(self.layer, self.spec, query)


class PagedCache(Cache):
    """What a transformers class takes for its cache during one step."""

    def __init__(self, step: AttentionStep, specs: tuple[AttnSpec, ...]) -> None:
        super().__init__(layers=[])
        self._step, self._specs = step, specs

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Stores [1, Hkv, T, D] keys and values; they come back as they are, since our function reads the pages."""
        self._step.write(layer_idx, _by_token(key_states), _by_token(value_states))
        setattr(key_states, CALL, PagedCall(self._step, layer_idx, self._specs[layer_idx]))
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0  # only asked for to guess positions, which are given


@dataclass(slots=True)
class Trial:
    """What a trial call saw of each layer, by its index."""

    specs: dict[int, AttnSpec] = field(default_factory=dict)


class TrialCache(Cache):
    """Stands in for the paged cache in a trial call."""

    def __init__(self, trial: Trial) -> None:
        super().__init__(layers=[])
        self._trial = trial
        self._updated: set[int] = set()

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if layer_idx in self._updated:
            raise UnsupportedModelError(f"Layer {layer_idx} caches more than one set of keys and values.")
        self._updated.add(layer_idx)
        setattr(key_states, CALL, _TrialCall(self._trial, layer_idx, value_states))
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class _TrialCall:
    trial: Trial
    layer: int
    value: Tensor


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The registered function: query [1, Hq, T, D] to [1, T, Hq, D], over the pages of the step pinned to `key`."""
    call = getattr(key, CALL, None)
    if isinstance(call, PagedCall):
        return call.attend(_by_token(query))[None], None
    if not isinstance(call, _TrialCall):
        raise UnsupportedModelError("Its attention reads other keys than it stored in the cache.")
    spec = _read_call(module, query, key, value, attention_mask, scaling, call, kwargs)
    call.trial.specs[call.layer] = spec
    return query.new_zeros(1, query.shape[2], spec.q_heads, spec.v_dim), None


def register() -> None:
    """Makes the function known to transformers; doing so twice does no harm."""
    AttentionInterface.register(NAME, attention)


def _by_token(states: Tensor) -> Tensor:
    """[1, heads, T, D] to contiguous [T, heads, D]."""
    return states[0].transpose(0, 1).contiguous()


def _read_call(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None,
    call: _TrialCall,
    kwargs: dict[str, Any],
) -> AttnSpec:
    """The layer's AttnSpec, or UnsupportedModelError for anything our backends would not do."""
    where = f"Layer {call.layer}"
    if value is not call.value:
        raise UnsupportedModelError(f"{where} reads other values than it stored in the cache.")
    if attention_mask is not None:
        raise UnsupportedModelError(f"{where} makes an attention mask of its own.")
    is_causal = kwargs.get("is_causal")
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        raise UnsupportedModelError(f"{where} attends to later tokens.")
    window, softcap = kwargs.pop("sliding_window", None), kwargs.pop("softcap", None)
    for name, argument in kwargs.items():
        if argument is not None and name not in HARMLESS:
            raise UnsupportedModelError(f"{where} asks its attention for {name}.")
    return AttnSpec(
        q_heads=query.shape[1],
        kv_heads=key.shape[1],
        qk_dim=query.shape[3],
        v_dim=value.shape[3],
        scale=float(query.shape[3] ** -0.5 if scaling is None else scaling),
        softcap=None if softcap is None else float(softcap),
        window=None if window is None else int(window),
    )
