"""Which tensors of a checkpoint hold which parts of a decoder, family by family; what is skipped on purpose.

A family's table maps module names below a layer to our parts, in the order of a merged tensor's rows. Everything is
decided from headers: a name nobody knows, a wrong shape or a part left unfilled is an error before anything is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Protocol

from octavo.engine.errors import CheckpointError
from octavo.engine.model.parameters import part_shapes
from octavo.engine.model.spec import ModelSpec

OTHER_CONFIG = "The checkpoint is incomplete or its config.json belongs to another model; fetch it again."


class TensorHeader(Protocol):
    """What a plan reads of a tensor; engine/load's TensorInfo is one."""

    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def file(self) -> Path: ...
    @property
    def size_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint tensor that is read: its rows fill `parts` in order, of one expert if `expert` is given."""

    name: str
    parts: tuple[str, ...]
    expert: int | None = None


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """What to read of a checkpoint, and what is left out on purpose."""

    sources: dict[str, Source]
    skipped: tuple[str, ...]

    def size_bytes(self, tensors: Mapping[str, TensorHeader]) -> int:
        """Bytes to be read, as stored."""
        return sum(tensors[name].size_bytes for name in self.sources)


_Table = dict[str, tuple[str, ...]]

_ATTENTION: _Table = {
    "self_attn.q_proj": ("attn.q",),
    "self_attn.k_proj": ("attn.k",),
    "self_attn.v_proj": ("attn.v",),
    "self_attn.o_proj": ("attn.o",),
}
_DENSE: _Table = {"mlp.gate_proj": ("mlp.gate",), "mlp.up_proj": ("mlp.up",), "mlp.down_proj": ("mlp.down",)}
_HEAD_NORMS: _Table = {"self_attn.q_norm": ("attn.q_norm",), "self_attn.k_norm": ("attn.k_norm",)}
_PRE_NORMS: _Table = {"input_layernorm": ("attn_norm",), "post_attention_layernorm": ("mlp_norm",)}
_POST_NORMS: _Table = {
    "post_attention_layernorm": ("attn_post_norm",),
    "post_feedforward_layernorm": ("mlp_post_norm",),
}
_BOTH_NORMS: _Table = {"input_layernorm": ("attn_norm",), "pre_feedforward_layernorm": ("mlp_norm",)} | _POST_NORMS
_STACKED: _Table = {"mlp.experts.gate_up_proj": ("moe.gate", "moe.up"), "mlp.experts.down_proj": ("moe.down",)}
_EXPERTS: _Table = {
    "mlp.gate": ("moe.router",),
    "mlp.experts.gate_proj": ("moe.gate",),
    "mlp.experts.up_proj": ("moe.up",),
} | _STACKED
_MIXTRAL_EXPERTS: _Table = {
    "block_sparse_moe.gate": ("moe.router",),
    "block_sparse_moe.experts.w1": ("moe.gate",),
    "block_sparse_moe.experts.w3": ("moe.up",),
    "block_sparse_moe.experts.w2": ("moe.down",),
    "mlp.gate": ("moe.router",),
} | _STACKED
_LLAMA: _Table = _ATTENTION | _DENSE | _PRE_NORMS

LAYER_TABLES: dict[str, _Table] = {
    "llama": _LLAMA,
    "smollm3": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA | _HEAD_NORMS,
    "gemma2": _ATTENTION | _DENSE | _BOTH_NORMS,
    "gemma3_text": _ATTENTION | _DENSE | _BOTH_NORMS | _HEAD_NORMS,
    "phi3": _PRE_NORMS
    | {
        "self_attn.qkv_proj": ("attn.q", "attn.k", "attn.v"),
        "self_attn.o_proj": ("attn.o",),
        "mlp.gate_up_proj": ("mlp.gate", "mlp.up"),
        "mlp.down_proj": ("mlp.down",),
    },
    "granite": _LLAMA,
    "olmo2": _ATTENTION | _DENSE | _POST_NORMS | _HEAD_NORMS,
    "mixtral": _ATTENTION | _PRE_NORMS | _MIXTRAL_EXPERTS,
    "qwen3_moe": _LLAMA | _HEAD_NORMS | _EXPERTS,
}
_MODEL_TABLE = {"embed_tokens": "embed", "norm": "norm", "lm_head": "head"}

# What real files put before the text model's names, longest first.
_PREFIXES = ("model.language_model.", "language_model.model.", "model.text_model.", "language_model.", "model.", "")
# The other towers of multimodal checkpoints, and what joins them to the text.
_OTHER_TOWERS = re.compile(
    r"^(model\.)?(vision_\w+|visual|audio_\w+|embed_audio|embed_vision|multi_modal_projector|mm_projector|connector|"
    r"image_newline|image_projection|patch_merger)(\.|$)"
)
# Tables some old files keep although they follow from the config.
_DERIVED = re.compile(r"(^|\.)rotary_emb\w*\.\w*(inv_freq|cos_cached|sin_cached)$")
# Types that can be read, but hold codes or masks and never weights.
WHOLE_NUMBERS = frozenset({"I64", "I32", "I16", "I8", "U8", "BOOL"})
_LAYER = re.compile(r"^layers\.(\d+)\.(.+?)(?:\.(weight|bias))?$")
_EXPERT = re.compile(r"\.experts\.(\d+)\.")


def plan_weights(spec: ModelSpec, tensors: Mapping[str, TensorHeader]) -> WeightPlan:
    """Checks all names, shapes and number types of a checkpoint. Raises CheckpointError naming tensor and file."""
    shapes = part_shapes(spec)
    sources: dict[str, Source] = {}
    skipped: list[str] = []
    filled: dict[tuple[str, int], str] = {}
    has_embedding = any(name.endswith("embed_tokens.weight") for name in tensors)
    for name, header in tensors.items():
        source = _source(spec, name)
        if source is None:
            if not _is_skipped(spec, name):
                raise _unknown(spec, name, header)
            skipped.append(name)
            continue
        if spec.tied and source.parts == ("head.weight",):
            if has_embedding:
                skipped.append(name)
                continue
            source = Source(name, ("embed.weight",))  # of two tensors that share memory some writers keep this one
        _check_shape(shapes, source, header)
        if header.dtype in WHOLE_NUMBERS:
            raise _error(f"it is stored as {header.dtype}, in whole numbers without a scale", name, header.file)
        for place in _places(shapes, source):
            if place in filled:
                raise _error(f"it holds what {filled[place]} holds already", name, header.file)
            filled[place] = name
        sources[name] = source
    _check_complete(spec, shapes, filled, tensors)
    return WeightPlan(sources, tuple(skipped))


def _source(spec: ModelSpec, name: str) -> Source | None:
    """What the family's table says of a checkpoint name; None if nothing."""
    for prefix in _PREFIXES:
        if not name.startswith(prefix):
            continue
        rest = name[len(prefix) :]
        module, _, kind = rest.rpartition(".")
        if kind == "weight" and module in _MODEL_TABLE:
            return Source(name, (f"{_MODEL_TABLE[module]}.weight",))
        match = _LAYER.match(rest)
        if match is None:
            continue
        layer, module, kind = int(match[1]), match[2], match[3] or "weight"
        expert = _EXPERT.search(f"{module}.")
        if expert is not None:
            module = _EXPERT.sub(".experts.", module, count=1)
        parts = LAYER_TABLES[spec.family].get(module)
        if parts is None or layer >= len(spec.layers):
            return None
        return Source(
            name, tuple(f"layers.{layer}.{part}.{kind}" for part in parts), int(expert[1]) if expert else None
        )
    return None


def _is_skipped(spec: ModelSpec, name: str) -> bool:
    return bool(_DERIVED.search(name) or (spec.multimodal and _OTHER_TOWERS.match(name)))


def _check_shape(shapes: Mapping[str, tuple[int, ...]], source: Source, header: TensorHeader) -> None:
    wanted = []
    for part in source.parts:
        shape = shapes.get(part)
        if shape is None:
            raise _error("the config says that the model has no such weight", source.name, header.file)
        if source.expert is not None:
            if len(shape) != 3 or source.expert >= shape[0]:
                raise _error("the config says that the model has no such expert", source.name, header.file)
            shape = shape[1:]
        wanted.append(shape)
    rows = sum(shape[-2] if len(shape) > 1 else shape[0] for shape in wanted)
    first = wanted[0]
    expected = (*first[:-2], rows, first[-1]) if len(first) > 1 else (rows,)
    if tuple(header.shape) != expected:
        raise _error(
            f"its shape is {_times(header.shape)} where the config means {_times(expected)}", source.name, header.file
        )


def _places(shapes: Mapping[str, tuple[int, ...]], source: Source) -> Iterator[tuple[str, int]]:
    """What a tensor fills: (part, expert), expert 0 for parts that have none."""
    for part in source.parts:
        shape = shapes[part]
        for expert in range(shape[0]) if len(shape) == 3 and source.expert is None else (source.expert or 0,):
            yield part, expert


def _check_complete(
    spec: ModelSpec,
    shapes: Mapping[str, tuple[int, ...]],
    filled: Mapping[tuple[str, int], str],
    tensors: Mapping[str, TensorHeader],
) -> None:
    missing = []
    for part, shape in shapes.items():
        if len(shape) == 3:
            missing += [_usual_name(spec, part, e) for e in range(shape[0]) if (part, e) not in filled]
        elif (part, 0) not in filled:
            missing.append(_usual_name(spec, part))
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        files = sorted({header.file.name for header in tensors.values()})
        raise CheckpointError(
            f"The tensor {missing[0]}{more} is in none of the checkpoint's files ({_some(files)}).",
            tensor=missing[0],
            remedy=OTHER_CONFIG,
        )


def _usual_name(spec: ModelSpec, part: str, expert: int | None = None) -> str:
    """The name under which files of the family hold a part."""
    module, kind = part.rsplit(".", 1)
    if not module.startswith("layers."):
        name = next(theirs for theirs, ours in _MODEL_TABLE.items() if ours == module)
        return f"{name}.{kind}" if name == "lm_head" else f"model.{name}.{kind}"
    _, layer, ours = module.split(".", 2)
    for theirs, parts in LAYER_TABLES[spec.family].items():
        if ours in parts and (expert is None or len(parts) == 1):
            if expert is not None:
                theirs = theirs.replace(".experts.", f".experts.{expert}.")
            return f"model.layers.{layer}.{theirs}.{kind}"
    return part


def _unknown(spec: ModelSpec, name: str, header: TensorHeader) -> CheckpointError:
    return _error(f"no {spec.family} model has such a tensor", name, header.file)


def _error(reason: str, tensor: str, file: Path) -> CheckpointError:
    return CheckpointError(
        f"The tensor {tensor} in {file.name} does not fit: {reason}.",
        file=str(file),
        tensor=tensor,
        remedy="The file and its config.json do not belong together, or the model is of a kind not supported here: "
        "fetch it again, or choose another.",
    )


def _times(shape: Iterable[int]) -> str:
    return " x ".join(str(n) for n in shape) or "a single number"


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def parameter_count(spec: ModelSpec) -> int:
    """Numbers in all weights of a model, a tied head counted once."""
    return sum(prod(shape) for shape in part_shapes(spec).values())
