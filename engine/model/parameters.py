"""All weights of one decoder: their names and shapes, how they merge into linears, and where each part is filled in.

A part is one matrix or vector under a name of our own ("layers.3.attn.q.weight"); families.py says which tensors of
a checkpoint hold which parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from octavo.engine.model.spec import ModelSpec
from octavo.engine.quant.base import Format, LinearSpec, Part, WeightRef
from octavo.engine.quant.joined import JoinedFormat
from octavo.engine.quant.plain import PlainFormat
from octavo.engine.quant.products import choose
from octavo.engine.sending import QUEUED_BYTES, Backlog, send


@dataclass(slots=True)
class LayerWeights:
    """One layer. `qkv` is one merged linear or query, key and value; `gate_up` one merged linear or gate and up."""

    qkv: tuple[WeightRef, ...]
    o: WeightRef
    gate_up: tuple[WeightRef, ...]
    down: WeightRef
    attn_norm: Tensor | None = None
    attn_post_norm: Tensor | None = None
    mlp_norm: Tensor | None = None
    mlp_post_norm: Tensor | None = None
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    router: Tensor | None = None  # [experts, hidden]; then gate_up and down are stacks of experts


def part_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Every part a model of this spec has, with its shape. Rows first, as checkpoints hold them."""
    hidden = spec.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"embed.weight": (spec.vocab_size, hidden)}
    for index, layer in enumerate(spec.layers):
        name = f"layers.{index}."
        for part, rows in (("q", spec.q_size), ("k", spec.kv_size), ("v", spec.kv_size)):
            shapes[f"{name}attn.{part}.weight"] = (rows, hidden)
            if spec.qkv_bias:
                shapes[f"{name}attn.{part}.bias"] = (rows,)
        shapes[f"{name}attn.o.weight"] = (hidden, spec.q_size)
        if spec.o_bias:
            shapes[f"{name}attn.o.bias"] = (hidden,)
        if spec.qk_norm:
            full = spec.qk_norm == "full"
            shapes[f"{name}attn.q_norm.weight"] = (spec.q_size if full else spec.head_size,)
            shapes[f"{name}attn.k_norm.weight"] = (spec.kv_size if full else spec.head_size,)
        for norm, there in _norms(spec).items():
            if there:
                shapes[f"{name}{norm}.weight"] = (hidden,)
        shapes.update(_feed_forward_shapes(spec, name, layer.experts))
    shapes["norm.weight"] = (hidden,)
    if not spec.tied:
        shapes["head.weight"] = (spec.vocab_size, hidden)
    return shapes


def _norms(spec: ModelSpec) -> dict[str, bool]:
    return {
        "attn_norm": spec.pre_norms,
        "attn_post_norm": spec.post_norms,
        "mlp_norm": spec.pre_norms,
        "mlp_post_norm": spec.post_norms,
    }


def _feed_forward_shapes(spec: ModelSpec, name: str, has_experts: bool) -> dict[str, tuple[int, ...]]:
    hidden, experts = spec.hidden_size, spec.experts
    if has_experts and experts is not None:
        count, inner = experts.count, experts.intermediate_size
        return {
            f"{name}moe.router.weight": (count, hidden),
            f"{name}moe.gate.weight": (count, inner, hidden),
            f"{name}moe.up.weight": (count, inner, hidden),
            f"{name}moe.down.weight": (count, hidden, inner),
        }
    inner = spec.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {}
    for part, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))):
        shapes[f"{name}mlp.{part}.weight"] = shape
        if spec.mlp_bias:
            shapes[f"{name}mlp.{part}.bias"] = shape[:1]
    return shapes


@dataclass(frozen=True, slots=True)
class Formats:
    """How the parts of a model are held: the linears of its layers, the head, and parts (without ".weight") that stay
    as a checkpoint stores them."""

    linears: Format
    head: Format
    held: Mapping[str, Format] = field(default_factory=dict)
    notices: tuple[str, ...] = ()


@dataclass(slots=True)
class Weights:
    """Allocated on the device by `Weights.allocate`, then filled part by part; `merged` joins qkv and gate/up."""

    spec: ModelSpec
    dtype: torch.dtype
    embed: WeightRef
    head: WeightRef
    norm: Tensor
    layers: list[LayerWeights]
    _places: dict[str, list[tuple[WeightRef, int]]] = field(repr=False)  # part -> its linears, its first row in each
    _vectors: dict[str, Tensor] = field(repr=False)
    _interleaved: bool = False
    _merged: bool = False
    _held: frozenset[str] = frozenset()

    @classmethod
    def allocate(
        cls,
        spec: ModelSpec,
        formats: Format | Formats,
        *,
        device: torch.device,
        dtype: torch.dtype,
        merged: bool,
        float32_norms: bool = False,
        interleaved_rope: bool = False,
    ) -> Weights:
        """Empty weights in `dtype`; norm weights in float32 if asked or if they multiply before the cast to 16 bit.
        One format is for everything but the embedding.

        `interleaved_rope` puts the two channels that rotate together next to each other, in q, k and their norms:
        products of queries with keys stay what they are.
        """
        norm_dtype = torch.float32 if float32_norms or spec.norm_float32 else dtype
        if isinstance(formats, Format):
            formats = Formats(formats, formats)
        return _Allocator(spec, formats, device, dtype, norm_dtype, merged).run(interleaved_rope)

    def fill(self, part: str, tensor: Tensor, expert: int | None = None) -> None:
        """Copies a part as the checkpoint has it into place, cast to what is computed with."""
        base, kind = part.rsplit(".", 1)
        tensor = self._in_order(base, tensor)
        if part in self._vectors:
            target = self._vectors[part]
            send(target, tensor)
            if self.spec.norm_offset and not part.endswith("router.weight"):
                target += self.spec.norm_offset
            return
        for ref, row in self._places[base]:
            packed = ref.acquire()
            if kind == "weight":
                ref.format.pack(packed, ref.spec, {"weight": tensor}, row=row, expert=expert)
            elif packed.bias is not None:
                send(packed.bias[row : row + tensor.shape[0]], tensor)
            ref.release()

    def fill_planes(self, part: str, planes: Mapping[str, Tensor], expert: int | None = None) -> None:
        """Copies a part that stays as the checkpoint stores it, given as the planes of its format."""
        base = part.removesuffix(".weight")
        for ref, row in self._places[base]:
            whole = ref.format.whole_planes
            ordered = {name: t if name in whole else self._in_order(base, t) for name, t in planes.items()}
            ref.format.pack(ref.acquire(), ref.spec, ordered, row=row, expert=expert)
            ref.release()

    def _in_order(self, base: str, rows: Tensor) -> Tensor:
        """Rows of a part [rows, ...] as the ops want them, put into that order where they are going."""
        if self._interleaved and base.rpartition(".")[2] in ("q", "k", "q_norm", "k_norm"):
            return interleave(rows.to(self.device, non_blocking=True), self.spec.head_size, self.spec.ropes[0].rot_dim)
        return rows

    @property
    def device(self) -> torch.device:
        """Where all of them are."""
        return self.norm.device

    def rounds(self, part: str) -> bool:
        """Whether a format rounds this part, which then should come as exact as the checkpoint has it."""
        return part.endswith(".weight") and any(
            ref.format.quantizes for ref, _ in self._places.get(part.removesuffix(".weight"), ())
        )

    def holds(self, part: str) -> bool:
        """Whether a part stays as the checkpoint stores it."""
        return part.endswith(".weight") and part.removesuffix(".weight") in self._held

    @property
    def stay_packed(self) -> bool:
        """Whether parts stay as the checkpoint stores them."""
        return bool(self._held)

    def only_rounded(self, part: str) -> bool:
        """Whether all that becomes of a part is among `rounded_entries`."""
        places = self._places.get(part.removesuffix(".weight"), ())
        return bool(places) and part.endswith(".weight") and all(ref.format.quantizes for ref, _ in places)

    def rounded_entries(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Name, shape and dtype of every plane that a format makes by rounding; to be asked before `finish`."""
        return {name: (tuple(plane.shape), plane.dtype) for name, plane in self.rounded_planes()}

    def rounded_planes(self) -> Iterator[tuple[str, Tensor]]:
        """Those planes, as they are before `finish`."""
        for ref in self._refs():
            if ref.format.quantizes:
                for name, plane in ref.acquire().planes.items():
                    yield f"{ref.spec.name}.{name}", plane
                ref.release()

    def restore(self, planes: Iterable[tuple[str, Tensor]]) -> None:
        """Copies back what `rounded_planes` gave, in its order."""
        backlog = Backlog(self.device, QUEUED_BYTES)
        for (name, target), (found, plane) in zip(self.rounded_planes(), planes, strict=True):
            assert name == found
            send(target, plane)
            backlog.add(plane.numel() * plane.element_size())

    def finish(self) -> None:
        """To be called once, when every part has been filled. With merged parts, kernels are chosen as well."""
        for ref in self._refs():
            packed = ref.acquire()
            ref.format.finish(packed, ref.spec)
            if self._merged:
                choose(ref.format, packed, ref.spec, self.device)
            ref.release()

    def is_vector(self, part: str) -> bool:
        """Norm weights and routers: small, and kept as exact as the checkpoint has them."""
        return part in self._vectors

    @property
    def size_bytes(self) -> int:
        """Memory of all weights; a head that is the embedding counts once."""
        linears = sum(ref.format.bytes(ref.spec, self.dtype) for ref in self._refs())
        return linears + sum(vector.numel() * vector.element_size() for vector in self._vectors.values())

    @property
    def waits_for_experts(self) -> bool:
        """Whether some product asks the device how many rows each expert got, which a captured graph cannot."""
        device = self.device
        return any(
            ref.spec.experts is not None and ref.format.waits_for_experts(ref.spec, self.dtype, device)
            for ref in self._refs()
        )

    def _refs(self) -> list[WeightRef]:
        return list({id(ref): ref for places in self._places.values() for ref, _ in places}.values())

    def randomize(self, generator: torch.Generator, std: float = 0.02) -> None:
        """N(0, std) matrices, zero biases and unit norms, made on the device; then as `finish`."""
        for ref in self._refs():
            packed = ref.acquire()
            ref.format.randomize(packed, ref.spec, generator, std)
            if packed.bias is not None:
                packed.bias.zero_()
            ref.release()
        for name, vector in self._vectors.items():
            if name.endswith("router.weight"):
                vector.normal_(0.0, std, generator=generator)
            else:
                vector.fill_(1.0)
        self.finish()


def interleave(tensor: Tensor, head_size: int, rot_dim: int) -> Tensor:
    """Rows [heads * head_size, ...] with channel i + rot_dim/2 of every head moved right after channel i."""
    heads = tensor.unflatten(0, (-1, head_size))
    order = torch.arange(head_size, device=tensor.device)
    order[:rot_dim] = order[:rot_dim].view(2, -1).t().flatten()
    return heads[:, order].flatten(0, 1)


class _Allocator:
    """Walks a spec once and makes every tensor of it."""

    def __init__(
        self,
        spec: ModelSpec,
        formats: Formats,
        device: torch.device,
        dtype: torch.dtype,
        norm_dtype: torch.dtype,
        merged: bool,
    ) -> None:
        self.spec = spec
        self.formats = formats
        self.device = device
        self.dtype = dtype
        self.norm_dtype = norm_dtype
        self.merged = merged
        self.shapes = part_shapes(spec)
        self.places: dict[str, list[tuple[WeightRef, int]]] = {}
        self.vectors: dict[str, Tensor] = {}

    def run(self, interleaved: bool) -> Weights:
        spec = self.spec
        embed = self.linear("embed", ("embed",), default=PlainFormat())
        layers = [self.layer(i, layer.experts) for i, layer in enumerate(spec.layers)]
        norm = self.vector("norm")
        assert norm is not None
        if not spec.tied:
            head = self.linear("head", ("head",), default=self.formats.head)
        elif "embed" in self.formats.held or self.formats.head == embed.format:
            head = embed
        else:
            head = self.linear("head", ("embed",), default=self.formats.head)
        return Weights(
            spec,
            self.dtype,
            embed,
            head,
            norm,
            layers,
            self.places,
            self.vectors,
            interleaved,
            self.merged,
            frozenset(self.formats.held),
        )

    def layer(self, index: int, has_experts: bool) -> LayerWeights:
        name = f"layers.{index}."
        block = f"{name}moe." if has_experts else f"{name}mlp."
        last = index == len(self.spec.layers) - 1 and not has_experts
        return LayerWeights(
            qkv=self.group(f"{name}attn.qkv", tuple(f"{name}attn.{part}" for part in "qkv"), self.merged),
            o=self.linear(f"{name}attn.o", (f"{name}attn.o",), role="row"),
            gate_up=self.group(f"{block}gate_up", (f"{block}gate", f"{block}up"), self.merged or has_experts),
            down=self.linear(
                f"{block}down",
                (f"{block}down",),
                role="row",
                default=self.formats.linears.for_last if last else None,
            ),
            attn_norm=self.vector(f"{name}attn_norm"),
            attn_post_norm=self.vector(f"{name}attn_post_norm"),
            mlp_norm=self.vector(f"{name}mlp_norm"),
            mlp_post_norm=self.vector(f"{name}mlp_post_norm"),
            q_norm=self.vector(f"{name}attn.q_norm"),
            k_norm=self.vector(f"{name}attn.k_norm"),
            router=self.vector(f"{name}moe.router", self.dtype),
        )

    def group(self, name: str, parts: tuple[str, ...], merged: bool) -> tuple[WeightRef, ...]:
        if merged:
            return (self.linear(name, parts),)
        return tuple(self.linear(part, (part,)) for part in parts)

    def linear(
        self,
        name: str,
        parts: tuple[str, ...],
        role: Literal["column", "row"] = "column",
        default: Format | None = None,
    ) -> WeightRef:
        shapes = [self.shapes[f"{part}.weight"] for part in parts]
        spec = LinearSpec(
            name=name,
            parts=tuple(Part(part, shape[-2]) for part, shape in zip(parts, shapes)),
            in_dim=shapes[0][-1],
            bias=f"{parts[0]}.bias" in self.shapes,
            role=role,
            experts=shapes[0][0] if len(shapes[0]) == 3 else None,
        )
        default = (default or self.formats.linears).fitted(spec)
        holder = JoinedFormat.of(tuple(self.formats.held.get(part, default) for part in parts))
        ref = WeightRef(spec, holder, holder.allocate(spec, self.dtype, self.device))
        for part in parts:
            self.places.setdefault(part, []).append((ref, spec.first_row(part)))
        return ref

    def vector(self, name: str, dtype: torch.dtype | None = None) -> Tensor | None:
        shape = self.shapes.get(f"{name}.weight")
        if shape is None:
            return None
        vector = torch.empty(shape, dtype=dtype or self.norm_dtype, device=self.device)
        self.vectors[f"{name}.weight"] = vector
        return vector
