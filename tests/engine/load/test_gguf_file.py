"""A GGUF header is read as if it wanted to break the reader."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.engine.errors import CheckpointError
from octavo.engine.load.checkpoint import open_checkpoint
from octavo.engine.load.gguf_checkpoint import GGUFCheckpoint
from octavo.engine.load.gguf_file import read_gguf, read_gguf_beginning


def _text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def _pair(key: str, kind: int, value: bytes) -> bytes:
    return _text(key) + struct.pack("<I", kind) + value


def _info(name: str, dims: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return _text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def _file(
    path: Path,
    pairs: list[bytes] = [],  # noqa: B006 - never changed
    infos: list[bytes] = [],  # noqa: B006
    data: bytes = bytes(4096),
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> Path:
    num_tensors, num_pairs = counts or (len(infos), len(pairs))
    head = b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_pairs) + b"".join(pairs) + b"".join(infos)
    path.write_bytes(head + bytes(-len(head) % 32) + data)
    return path


def test_header_reads_what_the_gguf_package_wrote(tmp_path: Path, write_gguf: Callable[..., Path]) -> None:
    values: dict[str, Any] = {
        "a.number": 7,
        "a.float": 0.5,
        "a.flag": True,
        "a.text": "Ünï тест 山",
        "a.texts": ["x", "", "yz"],
        "a.numbers": [1, 2, 3],
    }
    path = write_gguf("llama", values, {"t": np.arange(6, dtype=np.float32).reshape(2, 3)}, name="тест 山/m.gguf")
    header = read_gguf(path)
    assert header.version == 3
    assert {k: header.metadata[k] for k in list(values)[:5]} == {k: values[k] for k in list(values)[:5]}
    assert header.metadata["a.numbers"].tolist() == [1, 2, 3]
    tensor = header.tensors["t"]
    assert (tensor.shape, tensor.type.name, tensor.size_bytes) == ((2, 3), "F32", 24)
    raw = path.read_bytes()[tensor.offset : tensor.offset + 24]
    assert np.frombuffer(raw, np.float32).tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda p: p.write_bytes(b""), "0 bytes"),
        (lambda p: p.write_bytes(b"GGUF" + bytes(8)), "12 bytes"),
        (lambda p: p.write_bytes(b"PK\x03\x04" + bytes(40)), "not a GGUF file"),
        (lambda p: p.write_bytes(b"version https://git-lfs.github.com/spec/v1\n"), "Git LFS pointer"),
        (lambda p: _file(p, version=1), "version 1"),
        (lambda p: _file(p, version=99), "version 99"),
        (lambda p: _file(p, version=3 << 24), "big-endian"),
        (lambda p: _file(p, counts=(1 << 60, 0)), "claims"),
        (lambda p: _file(p, counts=(0, 1 << 60)), "claims"),
        (lambda p: _file(p, [struct.pack("<Q", 1 << 62)]), "cut off"),
        (lambda p: _file(p, [_pair("k", 8, struct.pack("<Q", 1 << 40))]), "the value of k"),
        (lambda p: _file(p, [_pair("k", 77, b"")]), "unknown type 77 under k"),
        (lambda p: _file(p, [_pair("k", 9, struct.pack("<IQ", 8, 1 << 40))]), "strings under k"),
        (lambda p: _file(p, [_pair("k", 9, struct.pack("<IQ", 8, 2) + struct.pack("<Q", 1 << 40))]), "list k"),
        (lambda p: _file(p, [_pair("k", 9, struct.pack("<IQ", 4, 1 << 40))]), "array k"),
        (lambda p: _file(p, [_pair("k", 9, struct.pack("<IQ", 55, 1))]), "unknown type 55"),
        (lambda p: _file(p, [_pair("k", 9, struct.pack("<IQ", 9, 1 << 40))]), "arrays under k"),
        (lambda p: _file(p, [_pair("k", 9, struct.pack("<IQ", 9, 1) * 40)]), "nests arrays"),
        (lambda p: _file(p, [_pair("k", 4, bytes(4))] * 2), "k twice"),
        (lambda p: _file(p, [_text(b"\xff\xfe") + struct.pack("<I", 4) + bytes(4)]), "not UTF-8"),
        (lambda p: _file(p, [_pair("general.alignment", 4, struct.pack("<I", 0))]), "alignment"),
        (lambda p: _file(p, [_pair("general.alignment", 4, struct.pack("<I", 33))]), "alignment"),
        (lambda p: _file(p, [_pair("general.alignment", 8, _text("x"))]), "alignment"),
    ],
)
def test_a_broken_header_is_refused_in_one_sentence(tmp_path: Path, make: Callable[[Path], object], said: str) -> None:
    path = tmp_path / "bad.gguf"
    make(path)
    with pytest.raises(CheckpointError, match=said) as caught:
        open_checkpoint(path)
    assert caught.value.file == str(path)
    assert "bad.gguf" in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("infos", "said"),
    [
        ([_info("t", ())], "0 dimensions"),
        ([_info("t", (1, 1, 1, 1, 1))], "5 dimensions"),
        ([_info("t", (4, 0))], "cannot fill"),
        ([_info("t", (33,), kind=2)], "Q4_0 blocks of 32"),
        ([_info("t", (4,), kind=99)], "unknown type 99"),
        ([_info("t", (4,), offset=7)], "no multiple of 32"),
        ([_info("t", (1 << 20,))], "is cut off"),
        ([_info("t", (4,), offset=1 << 62)], "is cut off"),
        ([_info("t", (1 << 63, 1 << 63, 1 << 63, 1 << 63))], "is cut off"),
        ([_info("t", (4,)), _info("t", (4,), offset=32)], "t twice"),
        ([_info("u", (16,)), _info("t", (16,), offset=32)], "overlap"),
    ],
)
def test_a_tensor_that_lies_is_refused_by_name(tmp_path: Path, infos: list[bytes], said: str) -> None:
    path = _file(tmp_path / "bad.gguf", infos=infos)
    with pytest.raises(CheckpointError, match=said) as caught:
        read_gguf(path)
    assert caught.value.tensor == "t"


def test_a_file_cut_off_by_a_kilobyte_names_what_is_missing(
    write_gguf: Callable[..., Path], llama_metadata: dict[str, Any], llama_tensors: dict[str, np.ndarray]
) -> None:
    path = write_gguf("llama", llama_metadata, llama_tensors)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1024])
    with pytest.raises(CheckpointError, match=f"is cut off.*the file has {len(whole) - 1024}") as caught:
        open_checkpoint(path)
    assert caught.value.tensor == "blk.1.ffn_down.weight"


def test_a_tensor_type_that_is_not_decoded_is_refused_by_name_and_type(
    write_gguf: Callable[..., Path], llama_metadata: dict[str, Any], llama_tensors: dict[str, np.ndarray]
) -> None:
    llama_tensors["token_embd.weight"] = (np.zeros((8, 66), np.uint8), gguf.GGMLQuantizationType.IQ2_XXS)
    path = write_gguf("llama", llama_metadata, llama_tensors)
    with pytest.raises(CheckpointError, match=r"token_embd\.weight as IQ2_XXS") as caught:
        open_checkpoint(path)
    assert caught.value.tensor == "token_embd.weight"
    assert "Q4_K" in str(caught.value)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "sample.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 1)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    writer.add_array("tokenizer.ggml.scores", [0.5, 1.5])
    writer.add_tensor("token_embd.weight", np.ones((4, 32), np.float32))
    writer.add_tensor("output_norm.weight", np.ones((32,), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_to_a_header_does_more_than_a_clear_error(tmp_path: Path, sample: bytes, data: st.DataObject) -> None:
    """Flipped, cut and inserted bytes: a header is read or refused, never another exception or a huge allocation."""
    raw = bytearray(sample)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, min(len(raw) - 1, 400)))
        change = data.draw(st.sampled_from(("flip", "cut", "insert", "huge")))
        if change == "flip":
            raw[at] ^= data.draw(st.integers(1, 255))
        elif change == "cut":
            del raw[at : at + data.draw(st.integers(1, 64))]
        elif change == "insert":
            raw[at:at] = data.draw(st.binary(min_size=1, max_size=16))
        else:
            raw[at : at + 8] = struct.pack("<Q", data.draw(st.integers(0, (1 << 64) - 1)))
        if not raw:
            raw = bytearray(b"G")
    path = tmp_path / "fuzz.gguf"
    path.write_bytes(raw)
    try:
        ends = [tensor.offset + tensor.size_bytes for tensor in read_gguf(path).tensors.values()]
    except CheckpointError as error:
        ends, said = [], str(error)
    else:
        said = path.name
    assert path.name in said
    assert all(end <= len(raw) for end in ends)


def test_a_header_is_read_from_a_files_first_bytes_as_soon_as_they_hold_it(
    write_gguf: Callable[..., Path], llama_metadata: dict[str, Any], llama_tensors: dict[str, np.ndarray]
) -> None:
    path = write_gguf("llama", llama_metadata, llama_tensors)
    whole, expected = path.read_bytes(), read_gguf(path)
    ends = [*range(0, len(whole), max(1, len(whole) // 400)), len(whole)]
    known = [read_gguf_beginning("model.gguf", whole[:end], len(whole)) for end in ends]
    first = next(at for at, header in enumerate(known) if header is not None)
    assert all(header is None for header in known[:first])
    for header in known[first:]:
        assert header is not None
        assert (header.tensors, header.size_bytes) == (expected.tensors, len(whole))
    assert ends[first] < len(whole) - 2 * sum(tensor.size for tensor in llama_tensors.values())
    remote = GGUFCheckpoint(Path("elsewhere.gguf"), [known[-1]])
    assert remote.config == GGUFCheckpoint(path).config


def test_first_bytes_that_are_no_header_are_refused_at_once() -> None:
    with pytest.raises(CheckpointError, match="is not a GGUF file"):
        read_gguf_beginning("page.gguf", b"<!doctype html><html><body>", 1_000_000)
