"""What model.id may be, and what each wrong one is answered with."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from huggingface_hub import constants

from octavo.app.library import LibraryError, ModelNotFoundError, resolve_model
from octavo.app.library.catalog import list_models, remove_model

if TYPE_CHECKING:
    from tests.app.library.conftest import FakeHub

Files = Callable[..., dict[str, bytes]]


def make_model(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or ("config.json", "tokenizer.json", "model.safetensors"):
        (folder / name).write_bytes(b"{}")
    return folder


def test_a_folder_or_a_gguf_file_is_taken_as_it_is(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "Ünï тест 山 a b")
    assert resolve_model(str(folder)) == folder
    file = make_model(tmp_path / "files", "a.gguf", "notes.txt") / "a.gguf"
    assert resolve_model(str(file)) == file
    assert resolve_model(str(file.parent)) == file


def test_a_relative_path_and_the_home_folder_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_model(tmp_path / "org" / "model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert resolve_model("./org/model") == folder
    assert resolve_model("~/org/model") == folder


def test_a_name_is_looked_for_in_the_folders_of_the_configuration(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "models" / "org" / "model")
    file = make_model(tmp_path / "more" / "org", "tiny.gguf") / "tiny.gguf"
    folders = [tmp_path / "missing", str(tmp_path / "models"), tmp_path / "more"]
    assert resolve_model("org/model", folders=folders) == folder
    assert resolve_model("org/tiny", folders=folders) == file
    assert resolve_model("org/tiny.gguf", folders=folders) == file


def test_the_hub_is_asked_for_a_repository(fake_hub: FakeHub, safetensors_files: Files) -> None:
    fake_hub.repositories["org/model"] = safetensors_files()
    fake_hub.repositories["org/gguf"] = {"m-Q8_0.gguf": b"8", "m-Q4_0.gguf": b"4"}
    with pytest.raises(ModelNotFoundError, match=r"org/model is not on disk\. Fetch it: octavo models pull org/model"):
        resolve_model("org/model", may_fetch=False)
    assert fake_hub.requests == []
    assert (resolve_model("org/model") / "model.safetensors").is_file()
    assert resolve_model("org/model", may_fetch=False).is_dir()
    assert resolve_model("org/gguf:Q8_0").name == "m-Q8_0.gguf"
    with pytest.raises(ModelNotFoundError, match="has no revision 'v9'"):
        resolve_model("org/model", revision="v9")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("config.json", "tokenizer.json"), r"is not complete: model\.safetensors missing"),
        (("model.safetensors", "tokenizer.json"), r"is not complete: config\.json missing"),
        (("model.safetensors", "config.json"), r"is not complete: tokenizer\.json missing"),
        (("a.gguf", "b.gguf"), r"holds several models: a\.gguf, b\.gguf\. Name one"),
        (("pytorch_model.bin",), "only pickled weights"),
        (("readme.txt",), "no config.json and no weights"),
    ],
)
def test_a_folder_that_is_no_model_says_what_it_lacks(tmp_path: Path, names: tuple[str, ...], said: str) -> None:
    with pytest.raises(ModelNotFoundError, match=said):
        resolve_model(str(make_model(tmp_path / "model", *names)))


def test_a_broken_index_counts_as_missing(tmp_path: Path) -> None:
    folder = make_model(
        tmp_path / "m", "config.json", "tokenizer.json", "a.safetensors", "model.safetensors.index.json"
    )
    with pytest.raises(ModelNotFoundError, match=r"model\.safetensors\.index\.json missing"):
        resolve_model(str(folder))


@pytest.mark.parametrize("model_id", ["nothing-like-this", "a/b/c", "org/", "über/modell"])
def test_what_is_no_name_lists_the_forms(model_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError, match=r"There is no model .* Write starter, org/name"):
        resolve_model(model_id)


@pytest.mark.parametrize("model_id", ["/no/such/model", "./none", "no.gguf", "C:\\none"])
def test_a_path_that_is_not_there_is_named(model_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError, match="There is no folder or file") as caught:
        resolve_model(model_id)
    assert "config.yaml" not in str(caught.value)  # it may as well come from the command line


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"is not a \.gguf file"):
        resolve_model(str(make_model(tmp_path, "model.safetensors") / "model.safetensors"))


def test_none_is_no_model() -> None:
    with pytest.raises(LibraryError, match="no model is chosen"):
        resolve_model("none")


def test_the_starter_is_not_fetched_where_only_the_disk_counts(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="octavo models pull starter"):
        resolve_model("starter", cache=tmp_path, may_fetch=False)


def test_models_on_disk_are_listed_with_the_name_to_use(
    fake_hub: FakeHub, safetensors_files: Files, tmp_path: Path
) -> None:
    fake_hub.repositories["org/model"] = safetensors_files()
    fake_hub.repositories["org/gguf"] = {"m-Q8_0.gguf": b"8" * 3000}
    broken = resolve_model("org/model")
    resolve_model("org/gguf:Q8_0")
    make_model(tmp_path / "mine" / "small")
    make_model(tmp_path / "mine" / "a" / "b", "x.gguf")
    listed = {model.id: model for model in list_models([tmp_path / "mine"], tmp_path / "cache")}
    assert sorted(listed) == ["a/b/x.gguf", "org/gguf:Q8_0", "org/model", "small"]
    assert (listed["org/model"].size_bytes, listed["org/gguf:Q8_0"].size_bytes) == (5000, 3000)
    assert all(model.complete for model in listed.values())
    for name in listed:
        assert resolve_model(name, folders=[tmp_path / "mine"], may_fetch=False) == listed[name].path
    (broken / "tokenizer.json").unlink()
    assert [m.id for m in list_models([], tmp_path / "cache") if not m.complete] == ["org/model"]


def test_a_fetched_model_can_be_removed_and_a_users_own_cannot(
    fake_hub: FakeHub, safetensors_files: Files, tmp_path: Path
) -> None:
    fake_hub.repositories["org/model"] = safetensors_files()
    folder = resolve_model("org/model")
    own = make_model(tmp_path / "mine" / "small")
    for model_id in (str(own), "small", "org/other"):
        with pytest.raises(ModelNotFoundError, match="not in the Hugging Face cache"):
            remove_model(model_id)
    with pytest.raises(ModelNotFoundError, match="org/model:Q8_0 is not in"):
        remove_model("org/model:Q8_0")
    with pytest.raises(ModelNotFoundError, match="not in Octavo's cache"):
        remove_model("starter", tmp_path / "cache")
    assert remove_model("org/model") >= 5000
    assert not folder.exists()
    assert own.is_dir()


def test_one_quantization_is_removed_without_the_others(fake_hub: FakeHub, tmp_path: Path) -> None:
    fake_hub.repositories["org/gguf"] = {
        "m-Q4_0-00001-of-00002.gguf": b"4" * 2000,
        "m-Q4_0-00002-of-00002.gguf": b"5" * 2000,
        "m-Q8_0.gguf": b"8" * 3000,
        "m-copy.gguf": b"8" * 3000,
    }
    for variant in ("Q4_0", "Q8_0", "m-copy"):
        resolve_model(f"org/gguf:{variant}")
    assert remove_model("org/gguf:Q4_0") == 4000
    assert [model.id for model in list_models(cache=tmp_path)] == ["org/gguf:Q8_0"]  # the copy is the same file
    assert remove_model("org/gguf:m-copy") == 0  # its content is that of Q8_0
    assert resolve_model("org/gguf:Q8_0", may_fetch=False).read_bytes() == b"8" * 3000
    with pytest.raises(ModelNotFoundError):
        remove_model("org/gguf:Q4_0")
    remove_model("org/gguf:Q8_0")
    assert list_models(cache=tmp_path) == []
    assert not (Path(constants.HF_HUB_CACHE) / "models--org--gguf").exists()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="needs a user who may not read everything")
def test_folders_that_may_not_be_read_are_passed_over(tmp_path: Path) -> None:
    make_model(tmp_path / "mine" / "good")
    (make_model(tmp_path / "mine" / "shut")).chmod(0)
    assert [model.id for model in list_models([tmp_path / "mine"], tmp_path / "cache")] == ["good"]
