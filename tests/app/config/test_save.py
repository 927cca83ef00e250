"""Saving changes what was asked and nothing else."""

from __future__ import annotations

import difflib
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.app.config import ConfigError, Size, load_settings, save
from octavo.app.config.document import example_text
from octavo.app.config.files import write_atomically
from octavo.app.config.save import _as_yaml, _with_value
from octavo.app.config.yaml_file import read_yaml_text

Save = Callable[..., str]


@pytest.fixture
def saved(config_path: Path) -> Save:
    """The text after setting keys in a text; keys are given as section__key."""

    def save_text(text: str, **changes: object) -> str:
        config_path.write_bytes(text.encode("utf-8"))
        save(config_path, {name.replace("__", "."): value for name, value in changes.items()})
        return config_path.read_bytes().decode("utf-8")

    return save_text


def test_only_the_changed_lines_of_the_commented_file_differ(saved: Save) -> None:
    new = saved(example_text(), server__port=8000, sampling__seed=3, engine__kv_memory=Size.parse("6 GiB"))
    changed = [line for line in difflib.ndiff(example_text().splitlines(), new.splitlines()) if line[0] in "+-"]
    assert sorted(changed) == sorted(
        [
            "-   port: 7860",
            "+   port: 8000",
            "-   seed: null",
            "+   seed: 3",
            "-   kv_memory: auto",
            "+   kv_memory: 6 GiB",
        ]
    )


@pytest.mark.parametrize(
    ("text", "changes", "expected"),
    [
        ("", {"server__port": 1}, "server:\n  port: 1\n"),
        ("# mine", {"server__port": 1}, "# mine\nserver:\n  port: 1\n"),
        ("server:  # s\n# e\n", {"server__port": 1}, "server:  # s\n  port: 1\n# e\n"),
        ("server: ~\n", {"server__port": 1}, "server: {port: 1}\n"),
        ("server: {port: 3}\n", {"server__host": "localhost"}, "server: {port: 3, host: localhost}\n"),
        ("server: {}\n", {"server__port": 3}, "server: {port: 3}\n"),
        ("{server: {}}", {"app__theme": "dark"}, "{server: {}, app: {theme: dark}}"),
        ("sampling:\n  seed:   # s\n  top_k: 1\n", {"sampling__seed": 5}, "sampling:\n  seed: 5   # s\n  top_k: 1\n"),
        ("sampling:\n  seed: 1", {"sampling__top_k": 5}, "sampling:\n  seed: 1\n  top_k: 5\n"),
        ('model:\n    id: "a/b"  # m\n', {"model__id": "c/d"}, "model:\n    id: c/d  # m\n"),
        ("model:\n    id: a/b\n", {"model__id": "C:\\new"}, "model:\n    id: 'C:\\new'\n"),
        ("model:\n  id: a/b\n", {"model__id": "it's: #1"}, "model:\n  id: 'it''s: #1'\n"),
        ("model:\n  id: a/b\n", {"model__revision": "0123"}, "model:\n  id: a/b\n  revision: '0123'\n"),
        (
            "model:\n  folders:\n    - 'x y'  # one\n    # two\n  id: q\n",
            {"model__folders": ("a", "b c")},
            "model:\n  folders: [a, b c]  # one\n    # two\n  id: q\n",
        ),
        ("sampling: {seed: 4}\r\n", {"app__theme": "dark"}, "sampling: {seed: 4}\r\napp:\r\n  theme: dark\r\n"),
        (
            "x-mine: [1,2]\nengine: {fusion:  on}\n",
            {"engine__fusion": False},
            "x-mine: [1,2]\nengine: {fusion:  false}\n",
        ),
    ],
)
def test_the_rest_of_the_file_stays_as_it_was(
    saved: Save, text: str, changes: dict[str, object], expected: str
) -> None:
    assert saved(text, **changes) == expected


def test_a_byte_order_mark_stays(config_path: Path) -> None:
    config_path.write_bytes(b"\xef\xbb\xbfserver: {port: 1}\n")
    save(config_path, {"server.port": 2})
    assert config_path.read_bytes() == b"\xef\xbb\xbfserver: {port: 2}\n"


def test_a_missing_file_is_written_with_its_comments(tmp_path: Path) -> None:
    path = tmp_path / "new" / "config.yaml"
    save(path, {"server.port": 1234})
    assert path.read_text(encoding="utf-8") == example_text().replace("port: 7860", "port: 1234")


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("server: {port: 1}\n", {"server.port": 70000}),
        ("server: {port: 1}\n", {"server.prot": 1}),
        ("server: {port: nonsense}\n", {"app.theme": "dark"}),
        ("server:\n\tport: 1\n", {"app.theme": "dark"}),
        ("model:\n  id: |\n    abc\n  revision: x\n", {"model.id": "b"}),
    ],
)
def test_what_would_be_wrong_is_not_written(config_path: Path, text: str, changes: dict[str, object]) -> None:
    config_path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError):
        save(config_path, changes)
    assert config_path.read_text(encoding="utf-8") == text
    assert list(config_path.parent.iterdir()) == [config_path]


def test_a_write_that_fails_leaves_the_old_file(config_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config_path.write_text("server: {port: 1}\n", encoding="utf-8")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left on device"):
        save(config_path, {"server.port": 2})
    assert config_path.read_text(encoding="utf-8") == "server: {port: 1}\n"
    assert list(config_path.parent.iterdir()) == [config_path]


@pytest.mark.skipif(sys.platform == "win32", reason="permission bits and links are POSIX habits")
def test_permissions_and_links_are_kept(tmp_path: Path) -> None:
    real, link = tmp_path / "real.yaml", tmp_path / "link.yaml"
    real.write_text("server: {port: 1}\n", encoding="utf-8")
    real.chmod(0o600)
    link.symlink_to(real)
    write_atomically(link, b"server: {port: 2}\n")
    assert link.is_symlink()
    assert real.read_bytes() == b"server: {port: 2}\n"
    assert stat.S_IMODE(real.stat().st_mode) == 0o600


PRINTABLE = st.text(
    st.characters(exclude_categories=("C", "Z")) | st.sampled_from(" '\"\\:#-[]{},&*!|>%@`"), min_size=1
)


@given(PRINTABLE, st.lists(PRINTABLE, max_size=3))
def test_any_text_reads_back_as_it_was_saved(value: str, folders: list[str]) -> None:
    text = "# top\nmodel:\n  revision: main  # keep\n"
    text = _with_value(text, "model", "id", _as_yaml(value), "\n")
    text = _with_value(text, "model", "folders", _as_yaml(folders), "\n")
    assert read_yaml_text(text, Path("config.yaml")).values == {
        "model": {"revision": "main", "id": value, "folders": folders}
    }
    assert "# keep" in text


def test_saved_values_are_in_force_at_the_next_load(saved: Save, config_path: Path) -> None:
    saved(example_text(), sampling__temperature=1e-5, engine__fusion=False, model__id="山/b")
    values = load_settings(config_path, environment={}).values
    assert (values.sampling.temperature, values.engine.fusion, values.model.id) == (1e-5, False, "山/b")
