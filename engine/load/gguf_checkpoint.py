"""A GGUF model as a Checkpoint: Hugging Face names, weights decoded chunk by chunk while they are streamed."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from octavo.engine.errors import CheckpointError
from octavo.engine.load.ahead import read_ahead
from octavo.engine.load.checkpoint import Checkpoint, TensorInfo
from octavo.engine.load.files import read_into
from octavo.engine.load.gguf_config import build_config, build_generation_config
from octavo.engine.load.gguf_decode import CHUNK_ELEMENTS, DECODERS, decode_blocks
from octavo.engine.load.gguf_file import GGUFFile, GGUFTensor
from octavo.engine.load.gguf_metadata import Metadata
from octavo.engine.load.gguf_names import Source, family_of, translate
from octavo.engine.load.gguf_split import read_parts
from octavo.engine.quant.blocks import block_format
from octavo.engine.sending import host_room

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MAX_WORKERS = 8
_SMALLEST_RUN = 1 << 19  # elements that are worth a hand-over to another thread
_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class GGUFCheckpoint(Checkpoint):
    """One .gguf file, or all parts of a split one. Files are open only while a stream runs."""

    kind = "gguf"

    def __init__(self, path: Path, parts: Sequence[GGUFFile] | None = None) -> None:
        """`parts` are headers read already, of files that need not be here: then nothing can be streamed."""
        self.path = path
        parts = list(parts) if parts is not None else read_parts(path)
        self._meta = Metadata(parts[0].metadata, parts[0].path)
        family = family_of(self._meta.architecture, path)
        self._stored = {t.name: (p.path, t) for p in parts for t in p.tensors.values()}
        heads = _positive(self._meta, ".attention.head_count")
        self._sources = translate(
            parts,
            family,
            layers=_positive(self._meta, ".block_count"),
            heads=heads,
            kv_heads=_positive(self._meta, ".attention.head_count_kv", heads),
        )
        for source in self._sources.values():
            _check_type(source.stored, source.file)
        if "model.embed_tokens.weight" not in self._sources:
            raise self.missing("token_embd.weight")
        self.config = build_config(self._meta, family, self._sources, self._read_setting)
        self.generation_config = build_generation_config(self._meta)
        self.tensors = {
            s.name: TensorInfo(
                s.name, s.stored.type.name, s.shape, s.file, s.size_bytes, block_format(s.stored.type.name, s.shape)
            )
            for s in self._sources.values()
        }

    def stream(
        self, names: Collection[str] | None = None, dtype: torch.dtype | None = None, *, pinned: bool = False
    ) -> Iterator[tuple[str, Tensor]]:
        self.check(names)
        wanted = self._sources if names is None else set(names)
        return self._decode_all([source for name, source in self._sources.items() if name in wanted], dtype, pinned)

    def stream_planes(self, names: Collection[str], *, pinned: bool = False) -> Iterator[tuple[str, dict[str, Tensor]]]:
        self.check(names)
        return self._read_blocks([source for name, source in self._sources.items() if name in set(names)], pinned)

    def load_tokenizer(self) -> PreTrainedTokenizerBase:
        from octavo.engine.load.gguf_tokenizer import build_tokenizer

        return build_tokenizer(self._meta)

    def _decode_all(
        self, sources: list[Source], dtype: torch.dtype | None, pinned: bool
    ) -> Iterator[tuple[str, Tensor]]:
        workers = min(torch.get_num_threads(), _MAX_WORKERS)
        with ThreadPoolExecutor(workers, thread_name_prefix="octavo-decode") as pool:
            for source in sources:
                yield source.name, _decode(source, dtype, pool, workers, pinned)

    def _read_blocks(self, sources: list[Source], pinned: bool) -> Iterator[tuple[str, dict[str, Tensor]]]:
        sizes = [(source, source.size_bytes) for source in sources]
        for source, blocks in read_ahead(sizes, lambda source: _read_blocks(source, pinned)):
            yield source.name, {"blocks": blocks}

    def _read_setting(self, name: str) -> Tensor | None:
        if name not in self._stored:
            return None
        file, stored = self._stored[name]
        if not file.is_file():  # only its header was read
            return None
        _check_type(stored, file)
        with ThreadPoolExecutor(1) as pool:
            return _decode(Source(name, stored.shape, file, stored), torch.float32, pool, 1).flatten()


def _positive(meta: Metadata, key: str, default: int | None = None) -> int:
    value = meta.whole(key) if default is None else meta.whole(key, default)
    if value < 1:
        raise meta.error(f"the metadata key {meta.architecture}{key} is {value}, expected at least 1.")
    return value


def _check_type(stored: GGUFTensor, file: Path) -> None:
    if stored.type.name not in DECODERS:
        raise CheckpointError(
            f"{file.name} stores {stored.name} as {stored.type.name}, which is not supported.",
            file=str(file),
            tensor=stored.name,
            remedy=f"Fetch a file of one of the types {', '.join(DECODERS)}.",
        )


def _decode(
    source: Source, dtype: torch.dtype | None, pool: ThreadPoolExecutor, workers: int, pinned: bool = False
) -> Tensor:
    """Reads and decodes one tensor, each worker a run of rows of it, straight into the wanted dtype."""
    plain = _PLAIN.get(source.stored.type.name)
    out = host_room((math.prod(source.shape),), dtype or plain or torch.float32, pinned)
    if source.undo != "added_one" and plain == out.dtype:
        with source.file.open("rb") as stream:
            stream.seek(source.offset)
            read_into(stream, out.view(torch.uint8), source.file, source.stored.name)
    else:
        run = max(_SMALLEST_RUN, -(-out.numel() // workers))
        run = -(-run // CHUNK_ELEMENTS) * CHUNK_ELEMENTS
        list(pool.map(lambda start: _decode_run(source, out[start : start + run], start), range(0, out.numel(), run)))
    out = out.view(source.shape)
    return _undo_rotary_rows(out, source.heads) if source.undo == "rotary_rows" else out


def _decode_run(source: Source, out: Tensor, start: int) -> None:
    """Fills `out` with the elements from `start` on, chunk by chunk."""
    kind = source.stored.type
    raw = torch.empty((CHUNK_ELEMENTS // kind.block_size, kind.block_bytes), dtype=torch.uint8)
    # Inference mode belongs to a thread: a worker needs it wherever the caller made `out` in it.
    with torch.inference_mode(out.is_inference()), source.file.open("rb") as stream:
        stream.seek(source.offset + start // kind.block_size * kind.block_bytes)
        for target in out.split(CHUNK_ELEMENTS):
            blocks = raw[: target.numel() // kind.block_size]
            read_into(stream, blocks, source.file, source.stored.name)
            values = decode_blocks(blocks, kind.name).view(-1)
            target.copy_(values.sub_(1.0) if source.undo == "added_one" else values)


def _read_blocks(source: Source, pinned: bool) -> Tensor:
    """A tensor as it is stored, uint8 [..., rows, bytes of a row]."""
    kind = source.stored.type
    row_bytes = source.shape[-1] // kind.block_size * kind.block_bytes
    blocks = host_room((*source.shape[:-1], row_bytes), torch.uint8, pinned)
    with source.file.open("rb") as stream:
        stream.seek(source.offset)
        read_into(stream, blocks.view(-1), source.file, source.stored.name)
    return _undo_rotary_rows(blocks, source.heads) if source.undo == "rotary_rows" else blocks


def _undo_rotary_rows(rows: Tensor, heads: int) -> Tensor:
    """From pairs (2i, 2i + 1) of interleaved rotary embedding to the halves (i, i + size / 2) of a head."""
    pairs = rows.view(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)
