"""Safetensors folders: what opens, what is refused, and in which words."""

from __future__ import annotations

import codecs
import json
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from octavo.engine.errors import CheckpointError
from octavo.engine.load.checkpoint import open_checkpoint
from octavo.engine.load.safetensors_header import read_header

WriteFolder = Callable[..., Path]


def _raw(path: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def _entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.fixture
def three_shards(write_safetensors: WriteFolder) -> Path:
    shards = [{f"layers.{i}.a": torch.full((64, 32), float(i)), f"layers.{i}.b": torch.arange(8)} for i in range(3)]
    return write_safetensors(shards, folder="Ünï тест 山/m o")


@pytest.mark.parametrize("kept", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("wanted", [None, torch.float32, torch.float16, torch.bfloat16])
def test_tensors_come_back_equal_in_the_dtype_asked_for(
    write_safetensors: WriteFolder, kept: torch.dtype, wanted: torch.dtype | None
) -> None:
    tensors = {
        "w": torch.randn(33, 7).to(kept),
        "scalar": torch.tensor(2.5, dtype=kept),
        "none": torch.empty(0, 3, dtype=kept),
    }
    with open_checkpoint(write_safetensors([tensors])) as checkpoint:
        got = dict(checkpoint.stream(dtype=wanted))
    assert set(got) == set(tensors)
    for name, tensor in tensors.items():
        assert torch.equal(got[name], tensor.to(wanted or kept))


def test_integers_and_flags_keep_their_type_whatever_dtype_is_asked_for(write_safetensors: WriteFolder) -> None:
    tensors = {
        "ids": torch.arange(5),
        "flags": torch.tensor([True, False]),
        "packed": torch.arange(6, dtype=torch.uint8),
    }
    with open_checkpoint(write_safetensors([tensors])) as checkpoint:
        for name, tensor in checkpoint.stream(dtype=torch.bfloat16):
            assert tensor.dtype == tensors[name].dtype
            assert torch.equal(tensor, tensors[name])


def test_a_tensor_larger_than_a_piece_is_converted_whole(
    write_safetensors: WriteFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.engine.load.safetensors_checkpoint._CHUNK_BYTES", 1000)
    weight = torch.randn(61, 53)
    with open_checkpoint(write_safetensors([{"w": weight}])) as checkpoint:
        assert torch.equal(checkpoint.read("w", torch.bfloat16), weight.bfloat16())


def test_shards_stream_in_file_order_under_a_path_that_is_not_ascii(three_shards: Path) -> None:
    with open_checkpoint(three_shards) as checkpoint:
        assert checkpoint.kind == "safetensors"
        assert checkpoint.tensors["layers.1.a"].shape == (64, 32)
        assert checkpoint.tensors["layers.1.a"].file.name == "model-00002-of-00003.safetensors"
        assert checkpoint.tensors["layers.1.a"].size_bytes == 64 * 32 * 4
        order = [checkpoint.tensors[name].file.name for name, _ in checkpoint.stream()]
        assert order == sorted(order)
        wanted = {"layers.2.a", "layers.0.b"}
        assert [name for name, _ in checkpoint.stream(wanted)] == ["layers.0.b", "layers.2.a"]
        assert torch.equal(checkpoint.read("layers.2.a"), torch.full((64, 32), 2.0))


def test_a_stream_that_is_given_up_reads_no_further(three_shards: Path) -> None:
    stream = open_checkpoint(three_shards).stream()
    next(stream)
    stream.close()
    assert not any(thread.name.startswith("octavo-read") for thread in threading.enumerate())


def test_a_name_that_is_not_there_is_refused_before_anything_is_read(three_shards: Path) -> None:
    with open_checkpoint(three_shards) as checkpoint:
        with pytest.raises(CheckpointError, match=r"no tensor named layers\.9\.a") as caught:
            checkpoint.stream(["layers.0.a", "layers.9.a"])
        assert caught.value.tensor == "layers.9.a"


@pytest.mark.parametrize("dtype", ["F8_E4M3FNUZ", "F8_E5M2FNUZ", "F4", "U32"])
def test_a_type_that_is_not_read_is_refused_by_name_only_when_it_is_wanted(tmp_path: Path, dtype: str) -> None:
    size = {"F4": 4, "U32": 32}.get(dtype, 8)
    header = {"a": _entry("F32", [2], 0, 8), "q": _entry(dtype, [8], 8, 8 + size)}
    (tmp_path / "config.json").write_text("{}")
    _raw(tmp_path / "model.safetensors", header, bytes(8 + size))
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.read("a").tolist() == [0, 0]
        with pytest.raises(CheckpointError, match=f"q as {dtype}, which is not supported") as caught:
            checkpoint.stream()
        assert caught.value.tensor == "q"


@pytest.mark.parametrize(
    ("header", "data", "said"),
    [
        (b"", b"", "not valid JSON"),
        (b"{", b"", "not valid JSON"),
        (b"\xff\xfe", b"", "not valid JSON"),
        (b"[" * 50_000, b"", "not valid JSON"),
        (b"[]", b"", "not a JSON object"),
        ({"t": 3}, b"", "not an object"),
        ({"t": _entry("F33", [1], 0, 4)}, bytes(4), "unknown type 'F33'"),
        ({"t": {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}}, bytes(4), "unknown type"),
        ({"t": _entry("F32", [-1], 0, 4)}, bytes(4), "the shape"),
        ({"t": _entry("F32", [2**62] * 300, 0, 4)}, bytes(4), "the shape"),
        ({"t": {"dtype": "F32", "shape": [1]}}, bytes(4), "the byte range None"),
        ({"t": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, bytes(4), "the shape"),
        ({"t": _entry("F32", [1], 4, 0)}, bytes(4), "-4 bytes"),
        ({"t": _entry("F32", [2], 0, 4)}, bytes(4), r"4 bytes, but F32 \[2\] takes 8"),
        ({"t": _entry("F32", [1 << 62, 1 << 62], 0, 4)}, bytes(4), "takes"),
        ({"s": _entry("F32", [2], 0, 8), "t": _entry("F32", [1], 4, 8)}, bytes(8), "t overlap s"),
        ({"s": _entry("F32", [1], 0, 4), "t": _entry("F32", [1], 8, 12)}, bytes(12), "4 bytes before t"),
        ({"t": _entry("F32", [4], 0, 16)}, bytes(10), "t is not whole"),
        (b'{"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"t":{}}', bytes(4), "t twice"),
        ({"t": _entry("F32", [1], 0, 4)}, bytes(9), "its header accounts for"),
    ],
)
def test_a_header_that_lies_is_refused_before_data_is_read(tmp_path: Path, header: Any, data: bytes, said: str) -> None:
    path = _raw(tmp_path / "model.safetensors", header, data)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=said) as caught:
        open_checkpoint(tmp_path)
    assert caught.value.file == str(path)
    assert "model.safetensors" in str(caught.value)
    if " t " in f" {caught.value.message} ":
        assert caught.value.tensor == "t"


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "0 bytes"),
        (b"abc", "3 bytes"),
        (struct.pack("<Q", 500) + b"{}", "expected at least 508 bytes, found 10"),
        (struct.pack("<Q", 1 << 62) + b"{}", "no safetensors file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
    ],
)
def test_a_file_without_a_whole_header_is_refused(tmp_path: Path, raw: bytes, said: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(raw)
    with pytest.raises(CheckpointError, match=said):
        open_checkpoint(tmp_path)


def test_a_shard_cut_by_a_kilobyte_is_named_with_both_sizes(three_shards: Path) -> None:
    shard = three_shards / "model-00002-of-00003.safetensors"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1024])
    with pytest.raises(CheckpointError, match=f"expected {len(whole)} bytes, found {len(whole) - 1024}") as caught:
        open_checkpoint(three_shards)
    assert caught.value.file == str(shard)


def test_a_missing_shard_is_named_with_and_without_an_index(three_shards: Path) -> None:
    (three_shards / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"1 of the 3 weight files.*model-00002-of-00003\.safetensors"):
        open_checkpoint(three_shards)
    (three_shards / "model.safetensors.index.json").unlink()
    with pytest.raises(CheckpointError, match=r"1 of the 3 weight files.*model-00002-of-00003\.safetensors"):
        open_checkpoint(three_shards)


def _change_index(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))


def test_an_index_naming_a_tensor_its_shard_lacks_is_refused(three_shards: Path) -> None:
    _change_index(three_shards, lambda m: m.update({"layers.0.c": "model-00001-of-00003.safetensors"}))
    with pytest.raises(CheckpointError, match=r"layers\.0\.c in model-00001-of-00003\.safetensors") as caught:
        open_checkpoint(three_shards)
    assert caught.value.tensor == "layers.0.c"


@pytest.mark.parametrize(
    "name", ["../model.safetensors", "/etc/passwd", "C:\\x.safetensors", "a/b.safetensors", 3, "x.bin"]
)
def test_an_index_cannot_name_files_outside_its_folder(three_shards: Path, name: object) -> None:
    _change_index(three_shards, lambda m: m.update({"layers.0.a": name}))
    with pytest.raises(CheckpointError, match="not a safetensors file of its folder"):
        open_checkpoint(three_shards)


def test_a_tensor_in_two_shards_is_refused(write_safetensors: WriteFolder) -> None:
    folder = write_safetensors([{"a": torch.ones(1), "w": torch.ones(2)}, {"w": torch.zeros(2)}])
    with pytest.raises(CheckpointError, match=r"w is in model-00001.* and again in model-00002"):
        open_checkpoint(folder)


def test_pickles_are_never_opened_and_the_remedy_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n")
    with pytest.raises(CheckpointError, match="only as Python pickles") as caught:
        open_checkpoint(tmp_path)
    assert "save_pretrained" in str(caught.value)


def test_a_folder_without_a_config_or_weights_says_so(tmp_path: Path, write_safetensors: WriteFolder) -> None:
    with pytest.raises(CheckpointError, match="holds no model weights"):
        open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="There is no model at"):
        open_checkpoint(tmp_path / "nowhere")
    folder = write_safetensors([{"w": torch.ones(1)}])
    with pytest.raises(CheckpointError, match="Name the folder instead"):
        open_checkpoint(folder / "model.safetensors")
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        open_checkpoint(folder)


def test_an_adapter_is_not_taken_for_a_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    _raw(tmp_path / "adapter_model.safetensors", {})
    with pytest.raises(CheckpointError, match="holds an adapter"):
        open_checkpoint(tmp_path)


def test_weights_under_other_names_are_refused_without_an_index(tmp_path: Path) -> None:
    for name in ("one.safetensors", "two.safetensors"):
        _raw(tmp_path / name, {})
    with pytest.raises(CheckpointError, match=r"holds one\.safetensors, two\.safetensors"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
def test_configurations_are_utf8_with_or_without_a_byte_order_mark(write_safetensors: WriteFolder, mark: bytes) -> None:
    folder = write_safetensors([{"w": torch.ones(1)}])
    for name in ("config.json", "generation_config.json"):
        (folder / name).write_bytes(mark + json.dumps({"name": "тест 山"}, ensure_ascii=False).encode())
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.config == checkpoint.generation_config == {"name": "тест 山"}


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ("{}".encode("utf-16"), "encoded as UTF-16"),
        (b'{"a": "\xe4"}', "not UTF-8"),
        (b"{'a': 1}", "not valid JSON"),
        (b"[1]", "holds no JSON object"),
    ],
)
def test_a_configuration_that_cannot_be_read_says_why(write_safetensors: WriteFolder, raw: bytes, said: str) -> None:
    folder = write_safetensors([{"w": torch.ones(1)}])
    (folder / "config.json").write_bytes(raw)
    with pytest.raises(CheckpointError, match=said) as caught:
        open_checkpoint(folder)
    assert caught.value.file == str(folder / "config.json")


def test_tensors_stay_valid_after_the_checkpoint_is_closed_and_its_files_are_gone(
    write_safetensors: WriteFolder,
) -> None:
    folder = write_safetensors([{"w": torch.arange(1000.0)}])
    with open_checkpoint(folder) as checkpoint:
        tensor: Tensor = checkpoint.read("w")
    (folder / "model.safetensors").unlink()
    assert torch.equal(tensor, torch.arange(1000.0))


def test_a_file_the_system_does_not_let_us_read_is_one_sentence(
    write_safetensors: WriteFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_safetensors([{"w": torch.ones(1)}])
    locked = folder / "model.safetensors"
    really_open = Path.open

    def refuse(path: Path, *args: Any, **kwargs: Any) -> Any:
        if path == locked:
            raise PermissionError(13, "Permission denied", str(path))
        return really_open(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(CheckpointError, match=r"cannot be read \(Permission denied\)") as caught:
        open_checkpoint(folder)
    assert caught.value.file == str(locked)


_HEADERS = st.dictionaries(
    st.text(max_size=6),
    st.one_of(
        st.none(),
        st.fixed_dictionaries(
            {
                "dtype": st.sampled_from(["F32", "BF16", "F4", "BOOL", "?", 3]),
                "shape": st.lists(st.integers(-1, 6) | st.floats(allow_nan=False), max_size=3) | st.none(),
                "data_offsets": st.lists(st.integers(-4, 64), max_size=3) | st.text(max_size=2),
            }
        ),
    ),
    max_size=4,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    header=_HEADERS,
    size=st.integers(0, 64),
    noise=st.binary(max_size=3),
    length=st.none() | st.integers(0, (1 << 64) - 1),
)
def test_no_header_does_more_than_a_clear_error(
    tmp_path: Path, header: dict[str, Any], size: int, noise: bytes, length: int | None
) -> None:
    path = _raw(tmp_path / "fuzz.safetensors", json.dumps(header).encode() + noise, bytes(size), length)
    try:
        tensors = read_header(path)
    except CheckpointError as error:
        tensors, said = {}, str(error)
    else:
        said = path.name
    assert path.name in said
    assert all(8 <= t.offset <= t.offset + t.size_bytes <= path.stat().st_size for t in tensors.values())
