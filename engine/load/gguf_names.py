"""GGUF tensor names to Hugging Face names, family by family, and what conversion to GGUF did to the values.

Tensor names by the GGUF specification. What conversion changes (llama.cpp's converter): the families that descend from
its llama class have the rows of the query and key projections reordered for interleaved rotary embedding; gemma norms
are stored with one added; the experts of a layer are stacked in one tensor.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from octavo.engine.errors import CheckpointError, UnsupportedModelError
from octavo.engine.load.gguf_file import GGUFFile, GGUFTensor

Undo = Literal["nothing", "rotary_rows", "added_one"]

_ATTENTION = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_LLAMA = _NORMS | _ATTENTION | _MLP
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_AFTER_NORMS = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
_SANDWICH_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "pre_feedforward_layernorm"} | _AFTER_NORMS
_MIXTRAL_ROUTER = {"ffn_gate_inp": "block_sparse_moe.gate"}
_MIXTRAL_EXPERTS = {
    "ffn_gate": "block_sparse_moe.experts.{}.w1",
    "ffn_down": "block_sparse_moe.experts.{}.w2",
    "ffn_up": "block_sparse_moe.experts.{}.w3",
}
_QWEN_EXPERTS = {
    "ffn_gate": "mlp.experts.{}.gate_proj",
    "ffn_down": "mlp.experts.{}.down_proj",
    "ffn_up": "mlp.experts.{}.up_proj",
}
_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}

# Read as settings, not as weights.
SETTING_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
# Rotary tables some old conversions carry; they follow from the configuration.
_SKIPPED = re.compile(r"blk\.\d+\.attn_rot_embd(\.weight)?")
_BLOCK = re.compile(
    r"blk\.(?P<layer>\d+)\.(?P<part>[a-z0-9_]+?)(?P<stack>_exps)?(\.(?P<expert>\d+))?\.(?P<end>weight|bias)"
)


@dataclass(frozen=True, slots=True)
class Family:
    """How one GGUF architecture is spelled in Hugging Face's terms. Layer parts without "blk.N." and ".weight"."""

    model_type: str
    class_name: str
    layer: Mapping[str, str]
    experts: Mapping[str, str] = field(default_factory=dict)
    rotary_rows: bool = False  # q and k rows are interleaved
    norms_plus_one: bool = False


FAMILIES: dict[str, Family] = {
    "llama": Family("llama", "LlamaForCausalLM", _LLAMA | _MIXTRAL_ROUTER, experts=_MIXTRAL_EXPERTS, rotary_rows=True),
    "smollm3": Family("smollm3", "SmolLM3ForCausalLM", _LLAMA, rotary_rows=True),
    "granite": Family("granite", "GraniteForCausalLM", _LLAMA, rotary_rows=True),
    "qwen2": Family("qwen2", "Qwen2ForCausalLM", _LLAMA),
    "qwen3": Family("qwen3", "Qwen3ForCausalLM", _LLAMA | _HEAD_NORMS),
    "qwen3moe": Family(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        _NORMS | _ATTENTION | _HEAD_NORMS | {"ffn_gate_inp": "mlp.gate"},
        experts=_QWEN_EXPERTS,
    ),
    "gemma2": Family("gemma2", "Gemma2ForCausalLM", _SANDWICH_NORMS | _ATTENTION | _MLP, norms_plus_one=True),
    "gemma3": Family(
        "gemma3_text", "Gemma3ForCausalLM", _SANDWICH_NORMS | _HEAD_NORMS | _ATTENTION | _MLP, norms_plus_one=True
    ),
    "phi3": Family(
        "phi3",
        "Phi3ForCausalLM",
        _NORMS
        | {
            "attn_qkv": "self_attn.qkv_proj",
            "attn_output": "self_attn.o_proj",
            "ffn_up": "mlp.gate_up_proj",
            "ffn_down": "mlp.down_proj",
        },
    ),
    "olmo2": Family("olmo2", "Olmo2ForCausalLM", _AFTER_NORMS | _HEAD_NORMS | _ATTENTION | _MLP),
}


@dataclass(frozen=True, slots=True)
class Source:
    """Where a Hugging Face tensor lies: all of a stored tensor, or one expert of a stack."""

    name: str
    shape: tuple[int, ...]
    file: Path
    stored: GGUFTensor
    expert: int | None = None
    undo: Undo = "nothing"
    heads: int = 0  # for rotary_rows

    @property
    def size_bytes(self) -> int:
        return self.stored.size_bytes if self.expert is None else self.stored.size_bytes // self.stored.shape[0]

    @property
    def offset(self) -> int:
        return self.stored.offset + (self.expert or 0) * self.size_bytes


def family_of(architecture: str, path: Path) -> Family:
    """Raises UnsupportedModelError naming what was found and what there is."""
    family = FAMILIES.get(architecture)
    if family is None:
        raise UnsupportedModelError(
            f"{path.name} has the architecture {architecture!r}, which is not supported as a GGUF file.",
            remedy=f"Supported are {', '.join(sorted(FAMILIES))}; other models run from a folder with safetensors.",
        )
    return family


def translate(parts: Sequence[GGUFFile], family: Family, layers: int, heads: int, kv_heads: int) -> dict[str, Source]:
    """All weights under their Hugging Face names, in file order.

    Raises CheckpointError for a tensor that the family does not have: nothing is dropped in silence.
    """
    sources: dict[str, Source] = {}
    for part in parts:
        for stored in sorted(part.tensors.values(), key=lambda tensor: tensor.offset):
            if stored.name in SETTING_TENSORS or _SKIPPED.fullmatch(stored.name):
                continue
            for source in _sources(part, stored, family, layers, heads, kv_heads):
                if source.name in sources:
                    raise _unexpected(part, stored, f"is a second source of {source.name}")
                sources[source.name] = source
    return sources


def _sources(
    part: GGUFFile, stored: GGUFTensor, family: Family, layers: int, heads: int, kv_heads: int
) -> Iterator[Source]:
    outer, _, end = stored.name.rpartition(".")
    if outer in _OUTER and end in ("weight", "bias"):
        undo: Undo = "added_one" if family.norms_plus_one and outer == "output_norm" else "nothing"
        yield Source(f"{_OUTER[outer]}.{end}", stored.shape, part.path, stored, undo=undo)
        return
    match = _BLOCK.fullmatch(stored.name)
    if match is None or int(match["layer"]) >= layers:
        raise _unexpected(part, stored)
    prefix, kind = f"model.layers.{int(match['layer'])}.", match["part"]
    if match["stack"] or match["expert"]:
        pattern = family.experts.get(kind)
        if pattern is None:
            raise _unexpected(part, stored)
        if match["expert"]:
            name = prefix + pattern.format(int(match["expert"]))
            yield Source(f"{name}.{match['end']}", stored.shape, part.path, stored)
            return
        for expert in range(stored.shape[0]):
            name = f"{prefix}{pattern.format(expert)}.{match['end']}"
            yield Source(name, stored.shape[1:], part.path, stored, expert=expert)
        return
    if kind not in family.layer:
        raise _unexpected(part, stored)
    undo, of_heads = "nothing", 0
    if family.rotary_rows and kind in ("attn_q", "attn_k"):
        undo, of_heads = "rotary_rows", heads if kind == "attn_q" else kv_heads
        if stored.shape[0] % (2 * of_heads):
            raise _unexpected(part, stored, f"has {stored.shape[0]} rows, which {of_heads} heads cannot share evenly")
    elif family.norms_plus_one and kind.endswith("norm"):
        undo = "added_one"
    yield Source(
        f"{prefix}{family.layer[kind]}.{match['end']}", stored.shape, part.path, stored, undo=undo, heads=of_heads
    )


def _unexpected(
    part: GGUFFile, stored: GGUFTensor, what: str = "is not a part of this architecture"
) -> CheckpointError:
    return CheckpointError(
        f"{part.path.name}: the tensor {stored.name} {what}.",
        file=str(part.path),
        tensor=stored.name,
        remedy="Fetch another conversion of this model.",
    )
