"""The model that guesses is found like any other, and what is wrong with it costs nothing but the guessing."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.app import host
from octavo.app.config import load_settings
from octavo.engine.config import EngineConfig


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[EngineConfig]:
    """The configurations that engines were asked for."""
    seen: list[EngineConfig] = []

    class _Engine:
        @staticmethod
        def load(source: object, settings: EngineConfig, progress: object = None) -> None:
            seen.append(settings)

    monkeypatch.setattr("octavo.engine.engine.Engine", _Engine)
    return seen


def build(tmp_path: Path, mode: str, draft: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"speculation: {{mode: {mode}, draft_model: '{draft}'}}\n", encoding="utf-8")
    host.build_engine(tmp_path, load_settings(path).values, lambda *_: None)


def test_a_folder_is_found_and_given_to_the_engine(tmp_path: Path, asked: list[EngineConfig]) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "config.json").write_text("{}", encoding="utf-8")
    build(tmp_path, "draft", str(tmp_path / "small"))
    assert asked[0].draft_model == str(tmp_path / "small")
    assert asked[0].speculation == "draft"


def test_one_that_is_not_there_is_left_for_the_engine_to_tell(tmp_path: Path, asked: list[EngineConfig]) -> None:
    build(tmp_path, "auto", str(tmp_path / "nothing"))
    assert asked[0].draft_model == str(tmp_path / "nothing")


def test_modes_without_a_model_look_for_none(tmp_path: Path, asked: list[EngineConfig]) -> None:
    build(tmp_path, "ngram", "org/never-looked-for")
    assert asked[0].draft_model == "org/never-looked-for"
    assert asked[0].speculation == "ngram"
