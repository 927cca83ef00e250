"""Streaming quantized tensors, split models and settings that are wrong or missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from octavo.engine.errors import CheckpointError
from octavo.engine.load import gguf_checkpoint
from octavo.engine.load.checkpoint import open_checkpoint

WriteGGUF = Callable[..., Path]
_Q4_1 = gguf.GGMLQuantizationType.Q4_1
_Q8_0 = gguf.GGMLQuantizationType.Q8_0


def _quantized(values: np.ndarray, kind: gguf.GGMLQuantizationType) -> tuple[np.ndarray, gguf.GGMLQuantizationType]:
    return gguf.quants.quantize(values, kind), kind


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("dtype", [None, torch.float32, torch.bfloat16, torch.float16])
def test_a_tensor_decodes_the_same_however_many_threads_share_it(
    threads: int,
    dtype: torch.dtype | None,
    write_gguf: WriteGGUF,
    llama_metadata: dict[str, Any],
    llama_tensors: dict[str, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    embedding = np.random.default_rng(1).standard_normal((3001, 64)).astype(np.float32)
    llama_tensors["token_embd.weight"] = _quantized(embedding, _Q4_1)
    expected = torch.from_numpy(gguf.quants.dequantize(*llama_tensors["token_embd.weight"]))
    monkeypatch.setattr(gguf_checkpoint, "_SMALLEST_RUN", 1)
    monkeypatch.setattr(gguf_checkpoint.torch, "get_num_threads", lambda: threads)
    with open_checkpoint(write_gguf("llama", llama_metadata, llama_tensors)) as checkpoint:
        got = checkpoint.read("model.embed_tokens.weight", dtype)
        assert checkpoint.tensors["model.embed_tokens.weight"].dtype == "Q4_1"
    assert torch.equal(got, expected.to(dtype or torch.float32))


def test_streaming_inside_inference_mode_and_outside_give_tensors_of_that_kind(
    write_gguf: WriteGGUF,
    llama_metadata: dict[str, Any],
    llama_tensors: dict[str, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gguf_checkpoint, "_SMALLEST_RUN", 1)
    llama_tensors["blk.0.attn_q.weight"] = _quantized(llama_tensors["blk.0.attn_q.weight"], _Q8_0)
    with open_checkpoint(write_gguf("llama", llama_metadata, llama_tensors)) as checkpoint:
        outside = dict(checkpoint.stream(dtype=torch.bfloat16))
        with torch.inference_mode():
            inside = dict(checkpoint.stream(dtype=torch.bfloat16))
    for name, tensor in outside.items():
        assert not tensor.is_inference()
        assert inside[name].is_inference()
        assert torch.equal(tensor, inside[name])


def test_quantized_query_rows_are_put_back_in_order(
    write_gguf: WriteGGUF, llama_metadata: dict[str, Any], llama_tensors: dict[str, np.ndarray]
) -> None:
    rows = np.random.default_rng(2).standard_normal((64, 64)).astype(np.float32)
    interleaved = rows.reshape(4, 2, 8, 64).swapaxes(1, 2).reshape(64, 64)
    llama_tensors["blk.0.attn_q.weight"] = _quantized(interleaved, _Q8_0)
    with open_checkpoint(write_gguf("llama", llama_metadata, llama_tensors)) as checkpoint:
        got = checkpoint.read("model.layers.0.self_attn.q_proj.weight")
    expected = torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(rows, _Q8_0), _Q8_0))
    assert torch.equal(got, expected)


def test_the_head_is_tied_exactly_where_the_file_has_none(
    write_gguf: WriteGGUF, llama_metadata: dict[str, Any], llama_tensors: dict[str, np.ndarray]
) -> None:
    with open_checkpoint(write_gguf("llama", llama_metadata, llama_tensors)) as checkpoint:
        assert checkpoint.config["tie_word_embeddings"] is True
        assert "lm_head.weight" not in checkpoint.tensors
    llama_tensors["output.weight"] = llama_tensors["token_embd.weight"] + 1
    with open_checkpoint(write_gguf("llama", llama_metadata, llama_tensors)) as checkpoint:
        assert checkpoint.config["tie_word_embeddings"] is False
        assert torch.equal(checkpoint.read("lm_head.weight"), torch.from_numpy(llama_tensors["output.weight"]))


def test_streaming_some_names_goes_in_file_order_and_refuses_strangers(
    write_gguf: WriteGGUF, llama_metadata: dict[str, Any], llama_tensors: dict[str, np.ndarray]
) -> None:
    with open_checkpoint(write_gguf("llama", llama_metadata, llama_tensors)) as checkpoint:
        wanted = ["model.layers.1.mlp.up_proj.weight", "model.norm.weight", "model.layers.0.mlp.up_proj.weight"]
        assert [name for name, _ in checkpoint.stream(wanted)] == [wanted[1], wanted[2], wanted[0]]
        with pytest.raises(CheckpointError, match="no tensor named lm_head") as caught:
            checkpoint.stream(["lm_head.weight"])
        assert caught.value.tensor == "lm_head.weight"


def test_a_file_that_shrinks_while_it_is_read_is_an_error_not_garbage(
    write_gguf: WriteGGUF, llama_metadata: dict[str, Any], llama_tensors: dict[str, np.ndarray]
) -> None:
    path = write_gguf("llama", llama_metadata, llama_tensors)
    with open_checkpoint(path) as checkpoint:
        path.write_bytes(path.read_bytes()[:-2000])
        for dtype in (None, torch.bfloat16):
            with pytest.raises(CheckpointError, match=r"ended while blk\.1\.ffn_down\.weight was read"):
                checkpoint.read("model.layers.1.mlp.down_proj.weight", dtype)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({".block_count": "two"}, r"llama\.block_count should be a whole number; found was 'two'"),
        ({".block_count": None}, r"llama\.block_count is missing"),
        ({".attention.head_count": 0}, "head_count is 0, expected at least 1"),
        ({".attention.head_count_kv": [2, 1]}, "head_count_kv differs between layers"),
        ({".attention.head_count": 3}, r"attn_q\.weight has 64 rows, which 3 heads"),
        ({".rope.freq_base": "x"}, r"rope\.freq_base should be a number"),
        ({".rope.freq_base": float("nan")}, r"rope\.freq_base should be a number"),
        ({".rope.scaling.type": "bar", ".rope.scaling.factor": 2.0}, "rope scaling 'bar' is not known"),
        ({".context_length": True}, "context_length should be a whole number; found was True"),
    ],
)
def test_a_setting_that_is_wrong_is_named(
    change: dict[str, Any],
    said: str,
    write_gguf: WriteGGUF,
    llama_metadata: dict[str, Any],
    llama_tensors: dict[str, np.ndarray],
) -> None:
    metadata = {key: value for key, value in (llama_metadata | change).items() if value is not None}
    path = write_gguf("llama", metadata, llama_tensors)
    with pytest.raises(CheckpointError, match=said) as caught:
        open_checkpoint(path)
    assert "model.gguf" in str(caught.value)


def test_per_layer_lists_that_agree_are_one_number(
    write_gguf: WriteGGUF, llama_metadata: dict[str, Any], llama_tensors: dict[str, np.ndarray]
) -> None:
    with open_checkpoint(
        write_gguf("llama", llama_metadata | {".attention.head_count_kv": [2, 2]}, llama_tensors)
    ) as checkpoint:
        assert checkpoint.config["num_key_value_heads"] == 2


def test_rotary_divisors_of_no_known_rule_are_kept_as_they_are(
    write_gguf: WriteGGUF, llama_metadata: dict[str, Any], llama_tensors: dict[str, np.ndarray]
) -> None:
    llama_tensors["rope_freqs.weight"] = np.linspace(1, 3, 8, dtype=np.float32)
    with open_checkpoint(write_gguf("llama", llama_metadata, llama_tensors)) as checkpoint:
        rope = checkpoint.config["rope_parameters"]
    assert rope["rope_type"] == "longrope"
    assert rope["attention_factor"] == 1.0
    np.testing.assert_allclose(rope["long_factor"], np.linspace(1, 3, 8), rtol=1e-6)
    assert rope["short_factor"] == rope["long_factor"]


@pytest.mark.parametrize("values", [[1.0] * 7, [1.0] * 7 + [0.0], [1.0] * 7 + [float("nan")]])
def test_rotary_divisors_that_cannot_be_are_refused(
    values: list[float], write_gguf: WriteGGUF, llama_metadata: dict[str, Any], llama_tensors: dict[str, np.ndarray]
) -> None:
    llama_tensors["rope_freqs.weight"] = np.array(values, dtype=np.float32)
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight should hold 8 numbers above zero"):
        open_checkpoint(write_gguf("llama", llama_metadata, llama_tensors))


def test_sampling_advice_and_all_end_tokens_are_the_generation_config(
    write_gguf: WriteGGUF, llama_metadata: dict[str, Any], llama_tensors: dict[str, np.ndarray]
) -> None:
    advice = {
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.eot_token_id": 3,
        "general.sampling.temp": 0.6,
        "general.sampling.top_k": 20,
    }
    with open_checkpoint(write_gguf("llama", llama_metadata | advice, llama_tensors)) as checkpoint:
        assert checkpoint.generation_config == {
            "bos_token_id": 1,
            "eos_token_id": [2, 3],
            "temperature": 0.6,
            "top_k": 20,
        }


@pytest.fixture
def split(write_gguf: WriteGGUF, llama_metadata: dict[str, Any], llama_tensors: dict[str, np.ndarray]) -> list[Path]:
    """A model in three parts, as the gguf package's writer cuts it, under a name that is not ASCII."""
    write_gguf("llama", llama_metadata, llama_tensors, name="тест 山/m.gguf", split_max_tensors=7)
    return sorted((write_gguf("llama", {}, {"t": np.zeros(4)}, name="x.gguf").parent / "тест 山").iterdir())


def test_a_split_model_opens_from_any_of_its_parts(split: list[Path], llama_tensors: dict[str, np.ndarray]) -> None:
    assert [path.name for path in split] == [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    for path in (*split, split[0].parent):
        with open_checkpoint(path) as checkpoint:
            assert len(checkpoint.tensors) == len(llama_tensors)
            assert {info.file for info in checkpoint.tensors.values()} == set(split)
            assert len(dict(checkpoint.stream())) == len(llama_tensors)
            got = checkpoint.read("model.layers.1.mlp.down_proj.weight")
            assert torch.equal(got, torch.from_numpy(llama_tensors["blk.1.ffn_down.weight"]))


def test_a_missing_part_is_named(split: list[Path]) -> None:
    split[1].unlink()
    for path in (split[0], split[2], split[0].parent):
        with pytest.raises(CheckpointError, match=r"3 parts; missing: m-00002-of-00003\.gguf"):
            open_checkpoint(path)


def test_a_part_under_another_name_or_of_another_model_is_refused(split: list[Path]) -> None:
    split[1].write_bytes(split[2].read_bytes())
    with pytest.raises(CheckpointError, match="part 2 of 3, expected 1 of 3"):
        open_checkpoint(split[0])
    renamed = split[0].rename(split[0].with_name("model.gguf"))
    with pytest.raises(CheckpointError, match="its name does not say which"):
        open_checkpoint(renamed)


def test_a_folder_with_one_gguf_file_is_that_model_and_with_two_asks_which(
    write_gguf: WriteGGUF, llama_metadata: dict[str, Any], llama_tensors: dict[str, np.ndarray]
) -> None:
    path = write_gguf("llama", llama_metadata, llama_tensors, name="models/a.gguf")
    (path.parent / "mmproj-a.gguf").write_bytes(b"")  # the vision part that often lies beside a model
    with open_checkpoint(path.parent) as checkpoint:
        assert checkpoint.path == path
    write_gguf("llama", llama_metadata, llama_tensors, name="models/b.gguf")
    with pytest.raises(CheckpointError, match=r"2 GGUF models \(a\.gguf, b\.gguf\)"):
        open_checkpoint(path.parent)
