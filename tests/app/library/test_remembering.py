"""What is remembered of models: facts until their files change, the last loaded ones over restarts, estimates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from octavo.app.library import facts, sketches
from octavo.app.library.facts import FactsBook, read_facts
from octavo.app.library.recents import KEPT, Recent, Recents
from octavo.app.library.sketches import Sketches

LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 10, "hidden_size": 8}
SHAPE = {"intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64}


def make(folder: Path, **config: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"model.embed_tokens.weight": torch.zeros(10, 8, dtype=torch.float16)}, folder / "model.safetensors")
    text = json.dumps({**LLAMA, **SHAPE, "rms_norm_eps": 1e-5, "hidden_act": "silu", **config})
    (folder / "config.json").write_text(text, encoding="utf-8")
    return folder


def test_headers_are_read_again_only_when_files_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Path] = []
    monkeypatch.setattr(facts, "read_facts", lambda path: (reads.append(path), read_facts(path))[1])
    book, folder = FactsBook(), make(tmp_path / "m")
    assert book.known(folder) is None
    assert book.read(folder).context_length == 64
    assert book.read(folder) is book.known(folder)
    assert reads == [folder]
    make(folder, max_position_embeddings=128)
    assert book.known(folder) is None
    assert book.read(folder).context_length == 128


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "foo", "architectures": ["FooForCausalLM"]}, "foo"),
        ({"rope_scaling": {"rope_type": "bar", "factor": 2.0}}, "rope_type 'bar'"),
        ({"num_hidden_layers": "many"}, "num_hidden_layers"),
    ],
)
def test_what_cannot_be_loaded_says_why_in_one_line(tmp_path: Path, config: dict[str, object], said: str) -> None:
    problem = read_facts(make(tmp_path / "m", **config)).problem
    assert problem is not None
    assert said in problem
    assert "\n" not in problem


def test_what_is_no_model_at_all_has_a_problem_and_no_exception(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    for path in (tmp_path / "x.gguf", tmp_path / "nowhere", tmp_path):
        found = read_facts(path)
        assert found.problem
        assert found.parameters == 0


def test_an_estimates_sketch_is_kept_while_the_files_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []
    real = sketches.sketch_path
    monkeypatch.setattr(sketches, "sketch_path", lambda path: (made.append(path), real(path))[1])
    kept, folder = Sketches(), make(tmp_path / "m")
    assert kept.of_path(folder) is kept.of_path(folder)
    make(folder, max_position_embeddings=96)
    assert kept.of_path(folder).config["max_position_embeddings"] == 96
    assert len(made) == 2


def test_recent_models_survive_a_restart_the_last_one_first(tmp_path: Path) -> None:
    file = tmp_path / "data" / "recent.json"
    recents = Recents(file)
    recents.note("a", {})
    recents.note("b", {"context_length": 2048, "quantization": "int4", "id": "b"})
    recents.note("a", {})
    again = Recents(file)
    assert again.all() == (Recent("a"), Recent("b", 2048, "int4"))
    assert again.find("b") == Recent("b", 2048, "int4")
    again.forget("a")
    assert [recent.id for recent in Recents(file).all()] == ["b"]
    for number in range(20):
        again.note(str(number), {})
    assert [recent.id for recent in Recents(file).all()] == [str(number) for number in range(19, 19 - KEPT, -1)]


@pytest.mark.parametrize("text", ["{", "[]", '{"models": 7}', '{"models": [1]}', '{"models": [{}]}'])
def test_a_spoilt_list_of_recent_models_begins_anew(tmp_path: Path, text: str) -> None:
    (tmp_path / "recent.json").write_text(text, encoding="utf-8")
    assert Recents(tmp_path / "recent.json").all() == ()
