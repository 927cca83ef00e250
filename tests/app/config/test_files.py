"""How config.yaml is read: encodings, syntax, precedence, the first start."""

from __future__ import annotations

import codecs
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from octavo.app.config import ConfigError, Settings, load_settings
from octavo.app.config.document import example_text, json_schema, json_schema_text
from octavo.app.config.schema import fields

Load = Callable[..., Settings]
Complaint = Callable[..., str]
REPOSITORY = Path(__file__).parents[3]


def test_the_first_start_writes_a_commented_file_that_means_the_defaults(config_path: Path) -> None:
    first = load_settings(config_path, create=True, environment={})
    assert any(str(config_path) in notice for notice in first.notices)
    text = config_path.read_text(encoding="utf-8")
    assert text == example_text()
    assert all(f"  {key.split('.')[1]}: " in text for key in fields())
    again = load_settings(config_path, create=True, environment={})
    assert again.values == first.values
    assert again.notices == ()
    assert config_path.read_text(encoding="utf-8") == text


def test_a_file_is_not_written_unasked(config_path: Path) -> None:
    assert load_settings(config_path, environment={}).sources["server.port"] == "default"
    assert not config_path.exists()
    config_path.write_text("# mine\n", encoding="utf-8")
    load_settings(config_path, create=True, environment={})
    assert config_path.read_text(encoding="utf-8") == "# mine\n"


def test_a_folder_that_cannot_be_written_leaves_the_defaults_and_says_so(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("", encoding="utf-8")
    settings = load_settings(blocker / "config.yaml", create=True, environment={})
    assert "could not be written" in settings.notices[0]
    assert settings.values.server.port == 7860


def test_precedence_is_flag_then_environment_then_file_then_default(load: Load, config_path: Path) -> None:
    text = "server: {port: 1001, host: localhost}\nmodel: {id: none}\n"
    environment = {"OCTAVO_SERVER__PORT": "1002", "OCTAVO_MODEL__ID": "a/b", "OCTAVO_DATA_DIR": "/x", "PATH": "y"}
    settings = load(text, environment, model__id="c/d")
    assert settings.values.server.port == 1002
    assert settings.values.model.id == "c/d"
    assert settings.values.server.host == "localhost"
    assert [settings.sources[key] for key in ("model.id", "server.port", "server.host", "app.theme")] == [
        "flag",
        "environment",
        "file",
        "default",
    ]
    assert settings.places["model.id"] == "--model"
    assert settings.places["server.port"] == "OCTAVO_SERVER__PORT"
    assert settings.places["server.host"] == f"{config_path} line 1"


@pytest.mark.parametrize(
    ("name", "text", "key", "value"),
    [
        ("OCTAVO_ENGINE__FUSION", "off", "engine.fusion", False),
        ("OCTAVO_MODEL__FOLDERS", "a, b", "model.folders", ("a", "b")),
        ("OCTAVO_MODEL__FOLDERS", '["a,b"]', "model.folders", ("a,b",)),
        ("OCTAVO_MODEL__REVISION", "0123456", "model.revision", "0123456"),
        ("OCTAVO_SAMPLING__SEED", "", "sampling.seed", None),
        ("OCTAVO_SAMPLING__SEED", "7", "sampling.seed", 7),
        ("OCTAVO_ENGINE__KV_MEMORY", "80%", "engine.kv_memory", "80%"),
    ],
)
def test_the_environment_sets_values_of_every_kind(load: Load, name: str, text: str, key: str, value: object) -> None:
    section, field = key.split(".")
    found = getattr(getattr(load("", {name: text}).values, section), field)
    assert (str(found) if key == "engine.kv_memory" else found) == value


def test_a_fault_names_the_variable_or_flag_it_came_from(complaint: Complaint) -> None:
    assert complaint("", {"OCTAVO_SERVER__PORT": "x"}).startswith("OCTAVO_SERVER__PORT: server.port must be")
    assert complaint("", {"OCTAVO_SERVER__PROT": "1"}).endswith("did you mean server.port?")
    assert complaint("", server__port="70000").startswith("--port: server.port must be a whole number")


def test_what_the_environment_overrides_is_not_complained_about(load: Load) -> None:
    assert load("server: {port: nonsense}", {"OCTAVO_SERVER__PORT": "80"}).values.server.port == 80


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n", "\ufeff"])
def test_an_empty_file_means_the_defaults_with_one_notice(load: Load, text: str) -> None:
    settings = load(text)
    assert settings.values.model.id == "starter"
    assert len(settings.notices) == 1
    assert "every default is used" in settings.notices[0]


def test_keys_beginning_with_x_are_ignored_everywhere(load: Load) -> None:
    settings = load("x-mine: [1]\nserver:\n  x-note: {a: b}\n  port: 1\n")
    assert settings.values.server.port == 1
    assert settings.notices == ()


@pytest.mark.parametrize(
    "data",
    [
        "model: {id: 'D:/模型/山'}\n".encode(),
        codecs.BOM_UTF8 + "model: {id: 'D:/模型/山'}\n".encode(),
        "model:\r\n  id: 'D:/模型/山'  # 注释\r\n".encode(),
    ],
)
def test_utf8_loads_with_and_without_mark_and_with_windows_line_ends(load: Load, data: bytes) -> None:
    assert load(data).values.model.id == "D:/模型/山"


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ("model: {id: x}".encode("utf-16"), "UTF-16"),
        ("model: {id: x}".encode("utf-16-le"), "UTF-16"),
        (codecs.BOM_UTF32_LE + "model: {id: x}".encode("utf-32-le"), "UTF-32"),
    ],
)
def test_another_unicode_encoding_is_named(complaint: Complaint, data: bytes, name: str) -> None:
    assert f"is saved as {name}. Save it as UTF-8" in complaint(data)


@pytest.mark.parametrize("data", [b"a: \x00", b"model: {id: x}\nx-note: a\x00b\n", b"\x00" * 60])
def test_zeros_in_utf8_are_not_taken_for_utf16(complaint: Complaint, data: bytes) -> None:
    assert "the character U+0000 is not allowed" in complaint(data)


def test_utf16_without_a_mark_is_known_by_its_keys_among_chinese(complaint: Complaint) -> None:
    text = "# 一个注释在文件的开头\nmodel:\n  id: 'D:/模型/山'\n"
    for order in ("le", "be"):
        assert "is saved as UTF-16" in complaint(text.encode(f"utf-16-{order}"))


def test_a_windows_code_page_is_refused_with_the_line(complaint: Complaint) -> None:
    assert "line 2: byte 0xfc is not UTF-8" in complaint("model:\n  id: Mühle\n".encode("cp1252"))


def test_the_locale_does_not_matter(config_path: Path) -> None:
    config_path.write_text("model: {id: 'D:/山'}\n", encoding="utf-8")
    code = "import sys; from pathlib import Path; from octavo.app.config import load_settings\n"
    code += "print(ascii(load_settings(Path(sys.argv[1]), environment={}).values.model.id))"
    environment = {**os.environ, "PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    result = subprocess.run(
        [sys.executable, "-c", code, str(config_path)], env=environment, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == r"'D:/\u5c71'"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model:\n\tid: x", "line 2 column 1: a tab is used as indentation"),
        ("model:\n  id: x\n\tdtype: auto", "a tab is used as indentation"),
        ('model:\n  id: "C:\\Users\\me"', "Write a Windows path in single quotes"),
        ('model:\n  id: "C:\\Program"', "line 2: model.id must not hold control characters"),
        ('model:\n  id: "C:\\new\\table"', "line 2: model.id must not hold control characters"),
        ("- model", "line 1: must hold sections such as `model:`, found a list."),
        ("just words", "line 1: must hold sections such as `model:`, found a single value."),
        ("model: {id: a}\nmodel: {id: b}", "line 2 column 1: the key 'model' is there twice"),
        ("server:\n  port: 1\n  port: 2", "line 3 column 3: the key 'port' is there twice"),
        ("model: {id: a}\n---\nmodel: {id: b}", "line 2 column 1: a second document begins here"),
        ("model: id: x", "a colon is not allowed here"),
        ("model: [1", "is not valid YAML"),
        ("model: *missing", "is not valid YAML"),
        ("model:\n  id: x\n dtype: y", "line 3 column 2"),
        ("model: \x07", "line 1: the character U+0007 is not allowed"),
        ("1: x", "line 1: a key must be a word, found 1."),
        ("model: {1: x}", "a key must be a word, found 1."),
    ],
)
def test_what_does_not_parse_is_answered_with_place_and_hint(complaint: Complaint, text: str, expected: str) -> None:
    assert expected in complaint(text)


def test_anchors_and_merges_load(load: Load) -> None:
    text = "x-shared: &shared {temperature: 0.5}\nsampling:\n  <<: *shared\n  top_p: 0.9\n"
    sampling = load(text).values.sampling
    assert (sampling.temperature, sampling.top_p) == (0.5, 0.9)


def test_a_folder_in_the_files_place_is_an_error_not_the_defaults(config_path: Path) -> None:
    config_path.mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings(config_path, environment={})


def test_the_example_in_the_repository_is_current() -> None:
    assert (REPOSITORY / "config.example.yaml").read_text(encoding="utf-8") == example_text()


def test_the_json_schema_knows_every_key_and_allows_x_keys() -> None:
    schema = json_schema()
    assert json.loads(json_schema_text()) == schema
    for key in fields():
        section, name = key.split(".")
        part = schema["$defs"][schema["properties"][section]["$ref"].rsplit("/", 1)[1]]
        assert part["properties"][name]["description"], key
        assert part["properties"][name]["applies"], key
        assert part["additionalProperties"] is False
        assert "^x-" in part["patternProperties"]
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize(
    "text",
    [
        "[" * 5000,
        "x-a: " + "[" * 5000 + "]" * 5000,
        "model: " + "[" * 5000,
        "model: " + "{a: " * 5000,
        "x-a:\n " + "- " * 5000,
        "".join(" " * level + "x-a:\n" for level in range(300)),
    ],
)
def test_nesting_without_end_is_a_fault_of_the_file_found_at_once(complaint: Complaint, text: str) -> None:
    began = time.thread_time()
    assert "nested too deep" in complaint(text)
    assert time.thread_time() - began < 0.5  # to the end of the file it would be seconds


def test_what_stands_side_by_side_is_not_deep(load: Load) -> None:
    beside = "x-a: [" + "[[1], {b: [2]}], " * 100 + "]\n" + "".join(f"x-{n}:\n  - - a: [1]\n" for n in range(100))
    assert load((beside + "model: {id: x}\n").encode()).values.model.id == "x"


@pytest.mark.parametrize("value", ["1" * 5000, "2001-13-45"])
def test_a_number_or_date_that_cannot_be_held_is_a_fault_of_the_file(complaint: Complaint, value: str) -> None:
    assert "cannot be read" in complaint(f"sampling: {{top_k: {value}}}")
