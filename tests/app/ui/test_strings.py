"""Every word the page asks for exists in every language."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
from sentences import pattern, sentences

from octavo.app.library.weights import quantizations
from octavo.app.ui.page import asset, files_version
from octavo.app.ui.strings import AREAS, LANGUAGES, SENTENCES, choose_language

ASSETS = {
    entry.name: entry
    for folder in (files("octavo.assets"), files("octavo.assets").joinpath("panels"))
    for entry in folder.iterdir()
    if entry.name.endswith((".js", ".css", ".svg"))
}
SCRIPTS = {name: entry.read_text(encoding="utf-8") for name, entry in ASSETS.items() if name.endswith(".js")}


def test_no_word_is_said_by_two_areas() -> None:
    assert sum(len(area.EN) for area in AREAS) == len(LANGUAGES["en"])


def test_all_languages_have_the_same_keys_and_blanks_to_fill() -> None:
    english = LANGUAGES["en"]
    for language, words in LANGUAGES.items():
        assert words.keys() == english.keys(), language
        for key, text in words.items():
            assert text.strip(), (language, key)
            assert set(re.findall(r"\{\w+\}", text)) == set(re.findall(r"\{\w+\}", english[key])), (language, key)


@pytest.mark.parametrize("language", [language for language in LANGUAGES if language != "en"])
def test_whatever_an_error_can_say_is_said_in_every_language(language: str) -> None:
    forms = SENTENCES[language]
    known = {pattern(form) for form in forms}
    assert len(known) == len(forms)
    said = {pattern(template): f"{where}: {template}" for where, template in sentences()}
    assert len(said) > 300
    assert [place for form, place in said.items() if form not in known] == []
    for form, text in forms.items():
        assert sorted(set(re.findall(r"\{\w+\}", text))) == sorted(re.findall(r"\{\w+\}", form)), form


def test_sizes_are_told_in_one_unit() -> None:
    """A file that is 93 MB in one place and 89 MiB in another seems to be two."""
    said = [text for words in LANGUAGES.values() for text in words.values()]
    said += [text for forms in SENTENCES.values() for pair in forms.items() for text in pair]
    assert [text for text in said if re.search(r"\b[KkMGT]B\b", text)] == []


def test_every_format_that_weights_can_have_is_explained() -> None:
    for words in LANGUAGES.values():
        explained = {key.removeprefix("format.about.") for key in words if key.startswith("format.about.")}
        assert explained == set(quantizations())


def test_the_scripts_ask_only_for_words_that_exist() -> None:
    known = {re.sub(r"\.(one|other)$", "", key) for key in LANGUAGES["en"]}
    asked = {key for script in SCRIPTS.values() for key in re.findall(r"""\bt\(\s*"([\w.]+)\"""", script)}
    assert len(asked) > 40
    assert asked <= known


def test_every_word_is_used() -> None:
    text = "\n".join(SCRIPTS.values())
    built = (
        "reason.",
        "stage.",
        "theme.",
        "example.",
        "composer.s",
        "chats.",
        "import.",
        "nav.",
        "models.fit.",
        "models.fits.",
        "models.would.",
        "models.kind.",
        "models.token.",
        "format.",
        "settings.",
        "workload.",
        "pending.chip.",
        "monitor.",
        "enter",
        "data.",
        "pages.",
        "log.from.",
        "shortcuts.",
        "sampling.",
        "presets.from.",
        "presets.overflow.",
        "removed.",
        "said.",
        "files.what.",
    )  # keys put together by the scripts
    for key in LANGUAGES["en"]:
        stem = re.sub(r"\.(one|other)$", "", key)
        assert f'"{stem}"' in text or stem.startswith(built), key


@pytest.mark.parametrize(
    ("setting", "browser", "language"),
    [
        ("auto", "zh-CN,zh;q=0.9,en;q=0.8", "zh-CN"),
        ("auto", "zh-TW", "zh-CN"),
        ("auto", "de-DE,de;q=0.9,en;q=0.5,zh;q=0.4", "en"),
        ("auto", "en;q=0.3,zh;q=0.7", "zh-CN"),
        ("auto", "fr", "en"),
        ("auto", "", "en"),
        ("auto", "zh;q=x, *", "en"),
        ("en", "zh-CN", "en"),
        ("zh-CN", "en-US", "zh-CN"),
    ],
)
def test_the_language_is_the_setting_or_the_first_the_browser_wants(setting: str, browser: str, language: str) -> None:
    assert choose_language(setting, browser) == language


def test_only_the_pages_own_files_are_served_as_files() -> None:
    assert asset("page.js")
    assert asset("__init__.py") is None
    assert asset("../page.js") is None
    assert asset("panels/settings.js")
    assert asset("panels") is None
    assert asset("panels/../page.js") is None
    assert re.fullmatch(r"[0-9a-f]{12}", files_version())


def test_the_files_name_no_other_server_and_run_no_text_as_code() -> None:
    for entry in ASSETS.values():
        content = entry.read_text(encoding="utf-8")
        addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+", content)) - {"//www.w3.org", "http://www.w3.org"}
        assert addresses == set(), entry.name
        assert not re.search(r"\beval\(|new Function|setTimeout\(\s*[\"']", content), entry.name
