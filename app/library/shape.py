"""The figures of a model that memory depends on, read from its config whichever way the engine runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Shape:
    """`windows` has, for each layer, the tokens it keeps at most, or None for all. `notices` are the engine's own."""

    family: str
    windows: tuple[int | None, ...]
    q_heads: int
    kv_heads: int
    head_size: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    max_positions: int
    notices: tuple[str, ...] = ()
    tied: bool = False  # the engine's own decoder reads the head from the embedding


def read_shape(config: Mapping[str, Any]) -> Shape:
    """Raises UnsupportedModelError for an architecture the engine does not run."""
    from octavo.engine.model.build import longest_context
    from octavo.engine.model.spec import ModelSpec, has_own_decoder

    if not has_own_decoder(config):
        return _foreign(config, longest_context(config))
    spec = ModelSpec.from_config(config)
    return Shape(
        family=spec.family,
        windows=tuple(layer.window for layer in spec.layers),
        q_heads=spec.q_heads,
        kv_heads=spec.kv_heads,
        head_size=spec.head_size,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        vocab_size=spec.vocab_size,
        max_positions=spec.max_positions,
        notices=spec.notices,
        tied=spec.tied,
    )


def _foreign(config: Mapping[str, Any], max_positions: int) -> Shape:
    """By the names transformers' configs commonly use; every layer is taken to keep all tokens."""
    text = config.get("text_config")
    parts = (text, config) if isinstance(text, Mapping) else (config,)

    def number(*names: str, otherwise: int = 0) -> int:
        found = (part[name] for part in parts for name in names if isinstance(part.get(name), int))
        return next((value for value in found if value > 0), otherwise)

    hidden = number("hidden_size", "n_embd", "d_model")
    heads = number("num_attention_heads", "n_head", "n_heads", otherwise=1)
    return Shape(
        family=str(config.get("model_type")),
        windows=(None,) * number("num_hidden_layers", "n_layer", "n_layers", otherwise=1),
        q_heads=heads,
        kv_heads=number("num_key_value_heads", "num_kv_heads", otherwise=heads),
        head_size=number("head_dim", otherwise=hidden // heads),
        hidden_size=hidden,
        intermediate_size=number("intermediate_size", "ffn_dim", "n_inner", otherwise=4 * hidden),
        vocab_size=number("vocab_size"),
        max_positions=max_positions,
        notices=("It runs through its transformers class.",),
    )
