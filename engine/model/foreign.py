"""The way in for architectures that are not ours: any causal model of transformers that lets us attend for it.

Knows nothing of any one class. What a layer asks of attention is learnt from a trial call; before the model is used,
its own attention and ours must agree on a few tokens.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from octavo.engine.attention.base import AttentionStep, AttnSpec, CacheGroup, LayerKV, Layout, Plane
from octavo.engine.attention.torch_backend import TorchBackend
from octavo.engine.errors import ModelConfigError, UnsupportedModelError
from octavo.engine.model.base import CausalModel
from octavo.engine.model.spec import ADD_LENGTH, FAMILIES_HINT

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

    from octavo.engine.load.checkpoint import Checkpoint
    from octavo.engine.model.foreign_weights import WeightMap

OLDEST_TRANSFORMERS = (5, 24)  # where attention modules hand their arguments to the cache
LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})
CHECK_TOKENS = 11  # of the comparison with the class's own attention
AGREEMENT = {torch.float32: 1e-3, torch.float64: 1e-3}  # relative error allowed there; 16-bit rounding needs more
AGREEMENT_16_BIT = 6e-2


class ForeignModel(CausalModel):
    """A transformers class over the paged cache."""

    def __init__(self, model: PreTrainedModel, specs: tuple[AttnSpec, ...], name: str) -> None:
        from octavo.engine.model.foreign_attention import PagedCache

        self._paged_cache = PagedCache
        self._model = model
        self._base = getattr(model, model.base_model_prefix)
        self._head = _HeadOnly(model)
        parameters = list(model.parameters())
        self.name, self.architecture = name, type(model).__name__
        self.vocab_size = model.config.get_text_config().vocab_size
        self.max_positions = _max_positions(model.config)
        self.device, self.dtype = parameters[0].device, model.dtype
        self.attn_specs = specs
        self.cache_groups = _groups(specs)
        self.weight_bytes = sum(parameter.nbytes for parameter in parameters)
        self.notices = (
            f"{self.architecture} runs through transformers' own layers with Octavo's attention: "
            "right, but slower than the architectures Octavo has a decoder for.",
        )

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
        """See CausalModel.forward; only whole passes, since the class runs its own layers."""
        if first_layer or last_layer not in (None, len(self.attn_specs)) or hidden is not None:
            raise UnsupportedModelError(
                f"{self.architecture} runs all its layers at once.", remedy="Choose another speculation.mode."
            )
        cache = self._paged_cache(step, self.attn_specs)
        output = self._base(input_ids=token_ids[None], position_ids=positions[None], cache=cache, use_cache=True)
        return output.last_hidden_state[0]

    def logits(self, hidden: Tensor) -> Tensor:
        return self._head(hidden)


def why_not_foreign(config: Mapping[str, Any]) -> str | None:
    """None if a checkpoint of this configuration may be tried, else the reason in one sentence. Loads no weights."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    family = config.get("model_type")
    installed = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    if installed < OLDEST_TRANSFORMERS:
        return (
            f"The architecture {family} needs transformers {'.'.join(map(str, OLDEST_TRANSFORMERS))} or newer; "
            f"{transformers.__version__} is installed."
        )
    if family not in CONFIG_MAPPING:
        if config.get("auto_map"):
            return f"The architecture {family} comes with code of its own, which Octavo never runs."
        return f"The installed transformers {transformers.__version__} does not know the architecture {family}."
    if config.get("is_encoder_decoder") or config.get("add_cross_attention"):
        return f"The architecture {family} has an encoder; Octavo runs decoder-only models."
    try:
        settings = _read_config(config)
    except UnsupportedModelError as error:
        return error.message
    if type(settings) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return f"transformers has no causal language model of the architecture {family}."
    if settings.is_encoder_decoder:
        return f"The architecture {family} has an encoder; Octavo runs decoder-only models."
    cls: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(settings)]
    made_for = (config.get("architectures") or [cls.__name__])[0]
    if made_for != cls.__name__:
        return f"The checkpoint is a {made_for}; of this architecture Octavo runs {cls.__name__}."
    if config.get("quantization_config"):
        method = dict(config["quantization_config"]).get("quant_method", "an unknown method")
        return f"The checkpoint is quantized by {method}, which is not supported for the architecture {family}."
    if cls._is_stateful:
        return f"The architecture {family} keeps a recurrent state, which cannot be kept in pages."
    if config.get("alibi") or config.get("alibi_bias_max") or dict(config.get("attn_config") or {}).get("alibi"):
        return f"The architecture {family} biases attention by distance (ALiBi), which is not supported."
    if not cls._supports_attention_backend:
        return f"The architecture {family} does not let another program compute its attention in transformers."
    for kind in getattr(settings.get_text_config(), "layer_types", None) or ():
        if kind not in LAYER_TYPES:
            return f"The architecture {family} has layers of the kind {kind}, which cannot be kept in pages."
    return None


def build_foreign(
    checkpoint: Checkpoint,
    *,
    device: torch.device | str,
    dtype: torch.dtype,
    context_length: int,
    progress: Callable[[str, int, int], None] | None = None,
) -> CausalModel:
    """The checkpoint in its transformers class, its attention ours. Rotary frequencies are fixed for `context_length`.

    Raises UnsupportedModelError with the reason, CheckpointError for a tensor that is missing, unknown or misshapen.
    """
    from octavo.engine.model.foreign_weights import load_weights

    model, weights, specs = _prepare(checkpoint, dtype)
    device = torch.device(device)
    name = checkpoint.path.stem if checkpoint.path.is_file() else checkpoint.path.name
    with torch.inference_mode():
        load_weights(model, checkpoint, weights, device, dtype, progress)
        _fix_rotary(model, context_length)
        foreign = ForeignModel(model, _try_attention(model) if specs is None else specs, name)
        error = _disagreement(foreign, model)
    if not error < AGREEMENT.get(dtype, AGREEMENT_16_BIT):
        raise UnsupportedModelError(
            f"The architecture {model.config.model_type} attends in a way that Octavo's attention does not reproduce "
            f"(relative error {error:.2g} on a few tokens)."
        )
    return foreign


def check_foreign(checkpoint: Checkpoint) -> None:
    """All of `build_foreign`'s checks that need no weights: configuration, attention, tensor names and shapes."""
    _prepare(checkpoint, torch.float32)


def _prepare(
    checkpoint: Checkpoint, dtype: torch.dtype
) -> tuple[PreTrainedModel, WeightMap, tuple[AttnSpec, ...] | None]:
    """The class without storage, where its tensors come from, and what its layers ask of attention: None if that can
    only be tried on real weights."""
    reason = why_not_foreign(checkpoint.config)
    if reason is not None:
        raise UnsupportedModelError(reason, remedy=FAMILIES_HINT)
    from octavo.engine.model.foreign_weights import map_weights

    model = _make_empty(checkpoint.config, dtype)
    weights = map_weights(model, checkpoint)
    try:
        return model, weights, _try_attention(model)
    except NotImplementedError:  # experts are picked by value, which a model without storage has not
        return model, weights, None


class _Given(nn.Module):
    """Stands where a causal model expects its decoder, and answers with hidden states that are already there."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.__dict__["base"] = base
        self.hidden: Tensor | None = None

    def __getattr__(self, name: str) -> Any:
        return self if name == "decoder" else getattr(self.__dict__["base"], name)

    def forward(self, *args: Any, **kwargs: Any) -> _Answer:
        return _Answer(self.hidden)


class _Answer:
    """A decoder's output of any class: hidden states, and None for whatever else its head passes on."""

    def __init__(self, hidden: Tensor | None) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: int) -> Tensor | None:
        return (self.last_hidden_state, None)[min(index, 1)]

    def __getattr__(self, name: str) -> None:
        return None


class _HeadOnly:
    """The class's own way from hidden states to scores (head, scaling, soft-cap), without its decoder."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._given = _Given(getattr(model, model.base_model_prefix))
        self._model = copy.copy(model)
        self._model._modules = {**model._modules, model.base_model_prefix: self._given}

    def __call__(self, hidden: Tensor) -> Tensor:
        self._given.hidden = hidden[None]
        blank = torch.zeros(1, len(hidden), dtype=torch.int64, device=hidden.device)
        logits = self._model(input_ids=blank, use_cache=False).logits[0]
        self._given.hidden = None
        return logits.float()


def _read_config(config: Mapping[str, Any]) -> PretrainedConfig:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    values = {key: value for key, value in config.items() if key not in ("auto_map", "model_type")}
    try:
        return CONFIG_MAPPING[config["model_type"]].from_dict(values)
    except Exception as error:  # transformers validates with exceptions of many kinds
        raise ModelConfigError(f"transformers does not accept the configuration: {_one_line(error)}.") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__


def _make_empty(config: Mapping[str, Any], dtype: torch.dtype) -> PreTrainedModel:
    """The class on the meta device, attending through us."""
    from transformers import AutoModelForCausalLM

    from octavo.engine.model import foreign_attention

    foreign_attention.register()
    settings = _read_config(config)
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(
                settings, dtype=dtype, attn_implementation=foreign_attention.NAME, trust_remote_code=False
            )
    except Exception as error:  # a class may fail on a setting in any way
        raise ModelConfigError(
            f"transformers cannot make a {settings.model_type} of this configuration: {_one_line(error)}."
        ) from error
    return model.eval().requires_grad_(False)


def _try_attention(model: PreTrainedModel) -> tuple[AttnSpec, ...]:
    """Runs two tokens through and reads what every layer asked of attention. Raises UnsupportedModelError."""
    from octavo.engine.model.foreign_attention import Trial, TrialCache

    config, device = model.config.get_text_config(), model.device
    trial, tokens = Trial(), torch.arange(2, device=device)[None]
    try:
        getattr(model, model.base_model_prefix)(
            input_ids=tokens, position_ids=tokens, cache=TrialCache(trial), use_cache=True
        )
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"The architecture {config.model_type} is not supported. {error.message}") from None
    except (NotImplementedError, torch.cuda.OutOfMemoryError):
        raise
    except (TypeError, AttributeError, ValueError, RuntimeError, KeyError) as error:
        if device.type == "meta" and isinstance(error, RuntimeError):
            raise NotImplementedError from error
        raise UnsupportedModelError(
            f"The architecture {config.model_type} cannot be run over a paged cache: {_one_line(error)}."
        ) from error
    kinds = getattr(config, "layer_types", None) or ()
    for layer in range(config.num_hidden_layers):
        if layer not in trial.specs:
            raise UnsupportedModelError(f"Layer {layer} of the architecture {config.model_type} has no such attention.")
        if layer < len(kinds) and (kinds[layer] == "sliding_attention") != (trial.specs[layer].window is not None):
            raise UnsupportedModelError(
                f"Layer {layer} of the architecture {config.model_type} does not tell its window to the attention."
            )
    return tuple(trial.specs[layer] for layer in sorted(trial.specs))


def _groups(specs: tuple[AttnSpec, ...]) -> tuple[CacheGroup, ...]:
    """Layers that cache alike and forget alike share pages."""
    kinds: dict[tuple[int, int, int, int | None], list[int]] = {}
    for layer, spec in enumerate(specs):
        kinds.setdefault((spec.kv_heads, spec.qk_dim, spec.v_dim, spec.window), []).append(layer)
    return tuple(
        CacheGroup(
            f"window-{window}" if window else "full",
            tuple(layers),
            (Plane("k", heads, qk_dim), Plane("v", heads, v_dim)),
            window,
        )
        for (heads, qk_dim, v_dim, window), layers in kinds.items()
    )


def _max_positions(config: PretrainedConfig) -> int:
    text = config.get_text_config()
    for name in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
        with contextlib.suppress(NotImplementedError):  # how a class without a limit answers
            value = getattr(text, name, None)
            if isinstance(value, int) and value > 0:
                return value
    raise ModelConfigError(
        f"The configuration of {text.model_type} does not say how long its context is.", remedy=ADD_LENGTH
    )


def _fix_rotary(model: PreTrainedModel, context_length: int) -> None:
    """Takes frequencies that would follow the batch's longest row as they are at `context_length`, once and for all."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    module: Any
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        if isinstance(kind, dict):
            if any(value in ("dynamic", "longrope") for value in kind.values()):
                raise UnsupportedModelError(
                    f"{type(module).__name__} changes its rotary frequencies with the length of a batch."
                )
        elif kind in ("dynamic", "longrope"):
            frequencies, scaling = ROPE_INIT_FUNCTIONS[kind](
                module.config, module.inv_freq.device, seq_len=context_length
            )
            module.inv_freq = frequencies
            module.original_inv_freq = frequencies.clone()
            module.attention_scaling = scaling
            module.rope_type = "default"


def _disagreement(foreign: ForeignModel, model: PreTrainedModel) -> float:
    """Relative error of the median token between the class's own attention and ours: one sequence in two chunks, with
    another sequence beside it."""
    from octavo.engine.model.foreign_attention import NAME

    count, device = CHECK_TOKENS, foreign.device
    ids = torch.arange(3 * count, device=device) * 7919 % foreign.vocab_size
    first, other = ids[:count], ids[count : count + 4]
    try:
        model.set_attn_implementation("eager")
        wanted = [
            foreign._base(
                input_ids=tokens[None], position_ids=torch.arange(len(tokens), device=device)[None], use_cache=False
            ).last_hidden_state[0]
            for tokens in (first, other)
        ]
    finally:
        model.set_attn_implementation(NAME)
    half = count // 2
    ours = _run_rows(foreign, [[(other, 0)], [(first[:half], 0)], [(first[half:], half), (other, 0)]])
    got = torch.cat((ours[1], ours[2]))
    want = torch.cat((wanted[0], wanted[1]))
    error = (got.float() - want.float()).norm(dim=-1) / want.float().norm(dim=-1).clamp_min(1e-12)
    return error.median().item() if got.isfinite().all() else float("inf")


def _run_rows(foreign: ForeignModel, steps: list[list[tuple[Tensor, int]]]) -> list[Tensor]:
    """Hidden states of each step; a step is a list of (token ids, tokens before them), row n on page n + 1."""
    size, backend, device = CHECK_TOKENS, TorchBackend(), foreign.device
    layers: dict[int, LayerKV] = {}
    for index, group in enumerate(foreign.cache_groups):
        for layer in group.layers:
            k, v = (torch.zeros(3, p.heads, size, p.dim, dtype=foreign.dtype, device=device) for p in group.planes)
            layers[layer] = LayerKV(k, v, index)
    results = []
    for rows in steps:
        lens = [len(ids) for ids, _ in rows]
        positions = torch.cat([torch.arange(before, before + len(ids), device=device) for ids, before in rows])
        pages = torch.arange(1, len(rows) + 1, device=device)
        slots = pages.repeat_interleave(torch.tensor(lens, device=device)) * size + positions
        ends = [before + len(ids) for ids, before in rows]
        groups = len(foreign.cache_groups)
        layout = Layout(
            q_start=torch.tensor([0, *lens], device=device).cumsum(0).int(),
            q_pos=positions,
            kv_len=torch.tensor(ends, device=device).int(),
            tables=(pages[:, None].int(),) * groups,
            write_slots=(slots,) * groups,
            page_size=size,
            num_rows=len(rows),
            num_tokens=sum(lens),
            num_decode_rows=0,
            max_q=max(lens),
            max_kv=max(ends),
            q_lens=tuple(lens),
            kv_lens=tuple(ends),
        )
        plan = backend.plan(layout, foreign.cache_groups)
        step = AttentionStep(backend, plan, [layers[layer] for layer in range(len(layers))])
        results.append(foreign.forward(torch.cat([ids for ids, _ in rows]), positions, step))
    return results
