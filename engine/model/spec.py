"""What a decoder looks like, read from a checkpoint's Hugging Face config and from nothing else.

Knows the families of engine/model/families.py; anything the decoder does not compute is refused here, by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from octavo.engine.errors import ModelConfigError, UnsupportedModelError
from octavo.engine.model.defaults import FAMILY_DEFAULTS
from octavo.engine.model.rotary import RopeSpec


@dataclass(frozen=True, slots=True)
class ExpertSpec:
    """A mixture-of-experts feed-forward: `per_token` of `count` experts run for each token."""

    count: int
    per_token: int
    intermediate_size: int
    normalize: bool  # the chosen experts' probabilities are divided by their sum


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What differs between the layers of one model."""

    window: int | None  # tokens a query sees, itself included; None: all before it
    rope: int | None  # index into ModelSpec.ropes; None: no positions (NoPE)
    experts: bool = False


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One decoder-only transformer. Sizes in elements, `max_positions` in tokens with rope scaling included."""

    family: str
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    q_heads: int
    kv_heads: int
    head_size: int
    layers: tuple[LayerSpec, ...]
    ropes: tuple[RopeSpec, ...]
    max_positions: int
    activation: str
    norm_eps: float
    attn_scale: float
    tied: bool  # the head is the embedding
    multimodal: bool = False  # only the text part of the checkpoint is used
    experts: ExpertSpec | None = None
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: Literal["head", "full"] | None = None  # full: over all heads at once, before they are split
    pre_norms: bool = True  # norms on what attention and feed-forward read
    post_norms: bool = False  # norms on what they add
    norm_offset: float = 0.0  # added to every norm weight (Gemma stores them minus one)
    norm_float32: bool = False  # norm weights multiply before the cast to 16 bit
    attn_softcap: float | None = None
    final_softcap: float | None = None
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    logit_divisor: float = 1.0
    notices: tuple[str, ...] = ()

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ModelSpec:
        """Reads a config as `config.json` holds it, old or new form. Raises UnsupportedModelError in one sentence."""
        text, multimodal = _text_part(config)
        return _Reading(config, text, multimodal).spec()

    @property
    def q_size(self) -> int:
        return self.q_heads * self.head_size

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_size


FAMILIES = tuple(FAMILY_DEFAULTS)
FAMILIES_HINT = f"Octavo's own decoder runs {', '.join(FAMILIES)}."
ADD_LENGTH = "Add max_position_embeddings to its config.json: the number of tokens that the model was made for."

LARGEST_SIZE = 2**31 - 1
MOST_LAYERS = 4096  # a config that lies must not make us build a million layers before its weights are looked at

_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_pytorch_tanh",
    "gelu_new": "gelu_pytorch_tanh",
    "gelu_fast": "gelu_pytorch_tanh",
}

# Multimodal wrappers whose prompt is not attended causally: their text part alone would compute something else.
_NOT_CAUSAL = ("paligemma",)


def has_own_decoder(config: Mapping[str, Any]) -> bool:
    """Whether a config is of a family above, alone or as the text part of a multimodal model."""
    try:
        _text_part(config)
    except UnsupportedModelError:
        return False
    return True


def _text_part(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """The config of the text model, and whether it came out of a multimodal checkpoint's."""
    outer = config.get("model_type")
    inner = config.get("text_config")
    if outer in FAMILIES:
        return config, False
    if isinstance(inner, Mapping):
        default = "gemma3_text" if outer == "gemma3" else None
        if inner.get("model_type", default) in FAMILIES and outer not in _NOT_CAUSAL:
            return inner, True
        found = f"{outer!r} with a text part of type {inner.get('model_type')!r}"
    else:
        found = repr(outer) if outer else "none"
    raise UnsupportedModelError(
        f"The checkpoint's model_type is {found}; supported are {', '.join(FAMILIES)}, "
        "also as the text part of a multimodal model."
    )


class _Reading:
    """One pass over a config: typed access with the family's defaults, then the pieces of a ModelSpec."""

    def __init__(self, outer: Mapping[str, Any], text: Mapping[str, Any], multimodal: bool) -> None:
        self.outer = outer
        self.text = text
        self.multimodal = multimodal
        self.family = str(text.get("model_type") or "gemma3_text")
        self.defaults = FAMILY_DEFAULTS[self.family]

    def get(self, key: str) -> Any:
        value = self.text.get(key)
        return self.defaults.get(key) if value is None else value

    def size(self, key: str) -> int:
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise ModelConfigError(f"The config's {key} is {value!r}; a positive whole number is needed.")
        if value > LARGEST_SIZE:
            raise ModelConfigError(f"The config's {key} is larger than {LARGEST_SIZE}, which no model has.")
        return value

    def size_or(self, key: str, default: int) -> int:
        return default if self.get(key) is None else self.size(key)

    def number(self, key: str, default: float) -> float:
        """A number above zero, as all that are read here are."""
        value = self.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise ModelConfigError(f"The config's {key} is {value!r}; a number above zero is needed.")
        return float(value)

    def entries(self, key: str) -> Sequence[Any] | None:
        value = self.get(key)
        if value is not None and not isinstance(value, list | tuple):
            raise ModelConfigError(f"The config's {key} is {value!r}; a list is needed.")
        return value

    def optional(self, key: str) -> float | None:
        """A number where an explicit null means "off", even if the family's default is a number."""
        if (key in self.text and self.text[key] is None) or self.get(key) is None:
            return None
        return self.number(key, 0.0)

    def spec(self) -> ModelSpec:
        family = self.family
        gemma = family in ("gemma2", "gemma3_text")
        qwen_or_gemma_norms = family in ("qwen3", "qwen3_moe", "gemma3_text")
        q_heads = self.size("num_attention_heads")
        kv_heads = self.size_or("num_key_value_heads", q_heads)
        hidden = self.size("hidden_size")
        head_size = self.size_or("head_dim", hidden // q_heads)
        if q_heads % kv_heads:
            raise ModelConfigError(
                f"The config has {q_heads} query heads for {kv_heads} key-value heads; a whole multiple is needed."
            )
        if self.get("use_bidirectional_attention"):
            raise UnsupportedModelError("The config asks for bidirectional attention; only causal models can chat.")
        biased = bool(self.get("attention_bias"))
        layers, ropes = self.layers_and_ropes(head_size)
        return ModelSpec(
            family=family,
            architecture=self.architecture(),
            vocab_size=self.size("vocab_size"),
            hidden_size=hidden,
            intermediate_size=self.size("intermediate_size"),
            q_heads=q_heads,
            kv_heads=kv_heads,
            head_size=head_size,
            layers=layers,
            ropes=ropes,
            max_positions=min(rope.extended_max for rope in ropes),
            activation=self.activation(gemma),
            norm_eps=self.number("rms_norm_eps", 1e-6),
            attn_scale=self.attn_scale(gemma, head_size),
            tied=self.tied(),
            multimodal=self.multimodal,
            experts=self.expert_spec(),
            qkv_bias=biased or family == "qwen2",
            o_bias=biased and family != "qwen2",
            mlp_bias=bool(self.get("mlp_bias")) and family in ("llama", "smollm3", "granite"),
            qk_norm="full" if family == "olmo2" else "head" if qwen_or_gemma_norms else None,
            pre_norms=family != "olmo2",
            post_norms=gemma or family == "olmo2",
            norm_offset=1.0 if gemma else 0.0,
            norm_float32=gemma or family == "olmo2",
            attn_softcap=self.optional("attn_logit_softcapping") if gemma else None,
            final_softcap=self.optional("final_logit_softcapping") if gemma else None,
            embed_scale=hidden**0.5 if gemma else self.granite("embedding_multiplier"),
            residual_scale=self.granite("residual_multiplier"),
            logit_divisor=self.granite("logits_scaling"),
            notices=self.notices(),
        )

    def granite(self, key: str) -> float:
        return self.number(key, 1.0) if self.family == "granite" else 1.0

    def attn_scale(self, gemma: bool, head_size: int) -> float:
        if gemma:
            return self.number("query_pre_attn_scalar", 256.0) ** -0.5
        return self.granite("attention_multiplier") if self.family == "granite" else head_size**-0.5

    def architecture(self) -> str:
        names = self.outer.get("architectures") or self.text.get("architectures")
        return str(names[0]) if isinstance(names, Sequence) and names and not isinstance(names, str) else self.family

    def activation(self, gemma: bool) -> str:
        key = "hidden_activation" if gemma else "hidden_act"  # Gemma's files hold both, and mean the first
        name = str(self.get(key))
        if name not in _ACTIVATIONS:
            raise UnsupportedModelError(f"The config's {key} is {name!r}; supported are {', '.join(_ACTIVATIONS)}.")
        return _ACTIVATIONS[name]

    def tied(self) -> bool:
        for config in (self.outer, self.text):
            if config.get("tie_word_embeddings") is not None:
                return bool(config["tie_word_embeddings"])
        return bool(self.defaults["tie_word_embeddings"])

    def expert_spec(self) -> ExpertSpec | None:
        if self.family == "mixtral":
            count, size, normalize = self.size("num_local_experts"), self.size("intermediate_size"), True
        elif self.family == "qwen3_moe":
            key = "num_local_experts" if self.text.get("num_local_experts") is not None else "num_experts"
            count, size = self.size(key), self.size("moe_intermediate_size")
            normalize = bool(self.get("norm_topk_prob"))
        else:
            return None
        per_token = self.size("num_experts_per_tok")
        if per_token > count:
            raise ModelConfigError(f"The config routes each token to {per_token} of only {count} experts.")
        return ExpertSpec(count, per_token, size, normalize)

    def layers_and_ropes(self, head_size: int) -> tuple[tuple[LayerSpec, ...], tuple[RopeSpec, ...]]:
        count = self.size("num_hidden_layers")
        if count > MOST_LAYERS:
            raise ModelConfigError(f"The config claims {count} layers; at most {MOST_LAYERS} are read.")
        sliding = self.sliding_layers(count)
        window = self.size("sliding_window") if any(sliding) else None
        ropes, rope_of = self.ropes(head_size, sliding)
        experts = self.expert_layers(count)
        layers = tuple(
            LayerSpec(window=window if sliding[i] else None, rope=rope_of[i], experts=experts[i]) for i in range(count)
        )
        return layers, ropes

    def sliding_layers(self, count: int) -> list[bool]:
        """Which layers attend only to a window."""
        family = self.family
        if family in ("mistral", "mixtral", "phi3"):
            off = "sliding_window" in self.text and self.text["sliding_window"] is None
            return [not off and self.get("sliding_window") is not None] * count
        if family in ("qwen2", "qwen3", "qwen3_moe", "smollm3") and not self.get("use_sliding_window"):
            return [False] * count
        if self.get("sliding_window") is None:
            return [False] * count
        if family == "qwen3_moe":
            return [True] * count
        types = self.entries("layer_types")
        if types is not None and family not in ("llama", "granite", "olmo2"):
            unknown = sorted({str(t) for t in types} - {"full_attention", "sliding_attention"})
            if unknown:
                raise UnsupportedModelError(
                    f"The config's layer_types name {', '.join(unknown)}; supported are full_attention and "
                    "sliding_attention."
                )
            if len(types) != count:
                raise ModelConfigError(f"The config's layer_types have {len(types)} entries for {count} layers.")
            return [t == "sliding_attention" for t in types]
        if family == "gemma2":
            return [i % 2 == 0 for i in range(count)]
        if family == "gemma3_text":
            pattern = self.size_or("sliding_window_pattern", self.size_or("_sliding_window_pattern", 6))
            return [(i + 1) % pattern != 0 for i in range(count)]
        if family in ("qwen2", "qwen3"):
            first = self.get("max_window_layers")
            if not isinstance(first, int):
                raise ModelConfigError(f"The config's max_window_layers is {first!r}; a whole number is needed.")
            return [i >= first for i in range(count)]
        if family == "smollm3":
            return [not rotated for rotated in self.rotated_layers(count)]
        return [False] * count

    def rotated_layers(self, count: int) -> list[bool]:
        """Which layers have positions at all (SmolLM3 leaves them out in every fourth)."""
        if self.family != "smollm3":
            return [True] * count
        flags = self.entries("no_rope_layers")  # despite its name, 1 means rotated
        if flags is None:
            interval = self.size_or("no_rope_layer_interval", 4)
            return [(i + 1) % interval != 0 for i in range(count)]
        if len(flags) < count:
            raise ModelConfigError(f"The config's no_rope_layers have {len(flags)} entries for {count} layers.")
        return [bool(flag) for flag in flags[:count]]

    def ropes(self, head_size: int, sliding: list[bool]) -> tuple[tuple[RopeSpec, ...], list[int | None]]:
        """The model's rotary embeddings and which one each layer uses."""
        parameters = self.get("rope_parameters") or {}
        scaling = self.get("rope_scaling") or {}
        if not isinstance(parameters, Mapping) or not isinstance(scaling, Mapping):
            raise ModelConfigError("The config's rope_parameters or rope_scaling is not a table of values.")
        rotated = self.rotated_layers(len(sliding))
        if self.family != "gemma3_text":
            rope = self.rope({**parameters, **scaling}, head_size, self.number("rope_theta", 10_000.0))
            return (rope,), [0 if on else None for on in rotated]
        nested = any(isinstance(value, Mapping) for value in parameters.values())
        everywhere = parameters.get("full_attention") if nested else parameters
        local = parameters.get("sliding_attention") if nested else None
        far = self.rope({**(everywhere or {}), **scaling}, head_size, self.number("rope_theta", 1_000_000.0))
        near = self.rope(local or {}, head_size, self.number("rope_local_base_freq", 10_000.0))
        return (far, near), [1 if s else 0 for s in sliding]

    def rope(self, parameters: Mapping[str, Any], head_size: int, theta: float) -> RopeSpec:
        merged = dict(parameters)
        if self.get("partial_rotary_factor") is not None:
            merged.setdefault("partial_rotary_factor", self.get("partial_rotary_factor"))
        original = None
        if self.family == "phi3":
            original = self.size("original_max_position_embeddings")
            merged["original_max_position_embeddings"] = original
            if (merged.get("rope_type") or merged.get("type")) == "yarn":
                merged["rope_type"] = "longrope"  # Phi-3's first files gave longrope this name
        return RopeSpec.from_parameters(
            merged,
            head_size=head_size,
            max_positions=self.size("max_position_embeddings"),
            theta=theta,
            original_max=original,
        )

    def expert_layers(self, count: int) -> list[bool]:
        if self.family == "mixtral":
            return [True] * count
        if self.family != "qwen3_moe":
            return [False] * count
        step = self.size_or("decoder_sparse_step", 1)
        dense = list(self.entries("mlp_only_layers") or ())
        return [i not in dense and (i + 1) % step == 0 for i in range(count)]

    def notices(self) -> tuple[str, ...]:
        if not self.multimodal:
            return ()
        return ("This is a multimodal checkpoint: its text part runs, images and sound are left out.",)
