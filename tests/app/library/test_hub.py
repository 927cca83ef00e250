"""Models of the hub, against a real server and the real hub library."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from huggingface_hub import constants

from octavo.app.library import (
    AccessError,
    DiskFullError,
    DownloadError,
    FetchCancelledError,
    ModelNotFoundError,
    OfflineError,
    hub,
)
from octavo.app.library.cache import find_cached, missing_files
from octavo.app.library.hub import fetch
from octavo.app.library.repository import RemoteFile, needed_files, variants

if TYPE_CHECKING:
    from tests.app.library.conftest import FakeHub

Files = Callable[..., dict[str, bytes]]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_only_weights_configuration_and_tokenizer_are_fetched(fake_hub: FakeHub, safetensors_files: Files) -> None:
    fake_hub.repositories["org/model"] = safetensors_files()
    reports: list[tuple[str, int, int, str]] = []
    folder = fetch("org/model", progress=lambda *report: reports.append(report))
    assert names(folder) == ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    assert (folder / "model.safetensors").read_bytes() == b"w" * 5000
    done = [report[1] for report in reports]
    assert done == sorted(done)
    assert reports[-1] == ("downloading", 5006, 5006, "Hugging Face hub")


def test_a_complete_model_needs_no_network(fake_hub: FakeHub, safetensors_files: Files) -> None:
    fake_hub.repositories["org/model"] = safetensors_files()
    folder = fetch("org/model")
    fake_hub.requests.clear()
    assert fetch("org/model") == folder
    assert find_cached("org/model") == folder
    assert fake_hub.requests == []


def test_a_partly_cached_model_offline_names_what_is_missing(
    fake_hub: FakeHub, safetensors_files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_hub.repositories["org/model"] = safetensors_files()
    folder = fetch("org/model")
    (folder / "model.safetensors").unlink()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(OfflineError, match=r"only partly on disk: model\.safetensors missing"):
        fetch("org/model")


def test_a_partly_cached_model_is_completed(fake_hub: FakeHub, safetensors_files: Files) -> None:
    fake_hub.repositories["org/model"] = safetensors_files()
    folder = fetch("org/model")
    for path in ((folder / "model.safetensors").resolve(), folder / "model.safetensors"):
        path.unlink(missing_ok=True)
    fake_hub.requests.clear()
    assert fetch("org/model") == folder
    assert (folder / "model.safetensors").is_file()
    assert not any("GET" in request and "tokenizer.json" in request for request in fake_hub.requests)


def test_a_missing_shard_is_noticed(fake_hub: FakeHub, safetensors_files: Files) -> None:
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    index = json.dumps({"weight_map": {"a": first, "b": second}})
    files = safetensors_files()
    del files["model.safetensors"]
    files |= {
        "model.safetensors.index.json": index.encode(),
        first: b"1" * 2000,
        second: b"2" * 2000,
    }
    fake_hub.repositories["org/model"] = files
    folder = fetch("org/model")
    assert missing_files(folder) == []
    (folder / second).unlink()
    assert missing_files(folder) == [second]
    assert find_cached("org/model") is None


def test_a_quantization_names_one_file_of_a_gguf_repository(fake_hub: FakeHub) -> None:
    fake_hub.repositories["org/gguf"] = {
        "m-Q4_K_M.gguf": b"4" * 2000,
        "m-Q8_0.gguf": b"8" * 3000,
        "mmproj-m-f16.gguf": b"v",
        "README.md": b"x",
    }
    path = fetch("org/gguf", "q4_k_m")
    assert path.name == "m-Q4_K_M.gguf"
    assert names(path.parent) == ["m-Q4_K_M.gguf"]
    assert find_cached("org/gguf", "Q4_K_M") == path
    with pytest.raises(ModelNotFoundError, match=r"several GGUF files: Q4_K_M, Q8_0\. Name one, for example org/gguf:"):
        fetch("org/gguf", cache=path.parents[4] / "another")
    with pytest.raises(ModelNotFoundError, match=r"has no GGUF file 'Q2_K'\. It has: Q4_K_M, Q8_0\."):
        fetch("org/gguf", "Q2_K")


def test_a_split_gguf_file_is_fetched_with_all_its_parts(fake_hub: FakeHub) -> None:
    fake_hub.repositories["org/split"] = {
        "m-Q4_0-00001-of-00002.gguf": b"1" * 1500,
        "m-Q4_0-00002-of-00002.gguf": b"2" * 1500,
    }
    path = fetch("org/split", "Q4_0")
    assert path.name == "m-Q4_0-00001-of-00002.gguf"
    assert len(names(path.parent)) == 2
    (path.parent / "m-Q4_0-00002-of-00002.gguf").unlink()
    assert find_cached("org/split", "Q4_0") is None


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (["pytorch_model.bin", "config.json"], "only pickled weights"),
        (["config.json", "README.md"], "no safetensors or GGUF weights"),
        (["sub/model.safetensors"], "no safetensors or GGUF weights"),
    ],
)
def test_a_repository_without_usable_weights_says_why(files: list[str], said: str) -> None:
    with pytest.raises(ModelNotFoundError, match=said):
        needed_files("org/model", [RemoteFile(name, 1) for name in files])


def test_a_second_copy_of_the_weights_is_left_out() -> None:
    files = ["config.json", "consolidated.safetensors", "model.safetensors", "tokenizer.model.v3", "tokenizer.model"]
    chosen = [file.name for file in needed_files("org/model", [RemoteFile(name, 1) for name in files])]
    assert chosen == ["config.json", "model.safetensors", "tokenizer.model"]


def test_variants_are_read_from_file_names() -> None:
    found = variants(["a-Q4_K_M.gguf", "b.IQ4_XS.gguf", "c-bf16.gguf", "d-Q8_0-00001-of-00003.gguf", "plain.gguf"])
    assert found == ["Q4_K_M", "IQ4_XS", "bf16", "Q8_0", "plain"]


@pytest.mark.parametrize(
    ("status", "code", "token", "kind", "said"),
    [
        (404, "RepoNotFound", None, ModelNotFoundError, "There is no model org/model on the Hugging Face hub"),
        (401, "GatedRepo", None, AccessError, r"must be granted on its Hugging Face page\. Accept the terms there"),
        (401, "", "hf_wrong", AccessError, "refused the token"),
        (403, "GatedRepo", "hf_right", AccessError, "has no access to org/model yet"),
        (404, "RevisionNotFound", None, ModelNotFoundError, "has no revision 'main'"),
        (429, "", None, DownloadError, "asks for a pause"),
        (500, "", None, DownloadError, "answered 500"),
    ],
)
def test_each_refusal_has_its_own_sentence(
    fake_hub: FakeHub,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    code: str,
    token: str | None,
    kind: type[Exception],
    said: str,
) -> None:
    fake_hub.deny["org/model"], fake_hub.tokens["hf_right"] = (status, code), "ada"
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(kind, match=said) as caught:
        fetch("org/model")
    assert "hf_" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unreachable_hub_is_said_to_be_so(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(OfflineError, match=r"cannot be reached\. org/model is not on disk\."):
        fetch("org/model")


def test_a_hub_that_never_answers_costs_three_seconds_at_most(
    fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hub.PROBE_S <= 3
    monkeypatch.setattr(hub, "PROBE_S", 0.1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(OfflineError, match=r"cannot be reached\. org/model is not on disk\."):
            fetch("org/model")


def test_a_download_can_be_cancelled_and_goes_on_later(fake_hub: FakeHub, safetensors_files: Files) -> None:
    fake_hub.repositories["org/model"] = safetensors_files()
    done: list[int] = []
    with pytest.raises(FetchCancelledError):
        fetch(
            "org/model",
            progress=lambda _, so_far, *rest: done.append(so_far),
            cancelled=lambda: max(done, default=0) > 3,
        )
    assert find_cached("org/model") is None
    assert (fetch("org/model") / "model.safetensors").stat().st_size == 5000


def test_an_exception_from_the_receiver_passes_through(fake_hub: FakeHub, safetensors_files: Files) -> None:
    class Enough(Exception):
        pass

    def receive(stage: str, done: int, total: int, source: str) -> None:
        if done > 6:
            raise Enough

    fake_hub.repositories["org/model"] = safetensors_files()
    with pytest.raises(Enough):
        fetch("org/model", progress=receive)


def test_too_little_space_is_noticed_before_the_download(
    fake_hub: FakeHub, safetensors_files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_hub.repositories["org/model"] = safetensors_files()
    real = hub.require_space
    monkeypatch.setattr(hub, "require_space", lambda folder, needed: real(folder, needed + 2**60))
    with pytest.raises(DiskFullError):
        fetch("org/model")
    assert not any("resolve" in request for request in fake_hub.requests)


def test_a_broken_connection_is_survived(fake_hub: FakeHub, safetensors_files: Files) -> None:
    fake_hub.repositories["org/model"] = safetensors_files()
    fake_hub.cut_after = 1200
    assert (fetch("org/model") / "model.safetensors").stat().st_size == 5000
