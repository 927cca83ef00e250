"""Every word of the page, a module an area with one table a language. Keys are the same in both; `{name}` is filled
in by the page."""

from __future__ import annotations

from octavo.app.ui.strings import (
    chats,
    composer,
    formats,
    models,
    monitor,
    presets,
    sentences_app,
    sentences_engine,
    sentences_files,
    sentences_library,
    settings,
    shell,
    talk,
)

AREAS = (shell, chats, talk, composer, presets, models, formats, settings, monitor)
LANGUAGES: dict[str, dict[str, str]] = {
    "en": {key: text for area in AREAS for key, text in area.EN.items()},
    "zh-CN": {key: text for area in AREAS for key, text in area.ZH_CN.items()},
}
# What the server says in English, by its form; `assets/sentences.js` finds it.
SENTENCES: dict[str, dict[str, str]] = {
    "en": {},
    "zh-CN": {
        **sentences_app.ZH_CN,
        **sentences_library.ZH_CN,
        **sentences_engine.ZH_CN,
        **sentences_files.ZH_CN,
    },
}


def choose_language(setting: str, accept_language: str) -> str:
    """The page's language: the setting, or with "auto" the first of the browser's that there is, or English."""
    if setting in LANGUAGES:
        return setting
    wishes: list[tuple[float, str]] = []
    for part in accept_language.split(","):
        tag, _, parameters = part.strip().partition(";")
        weight = parameters.strip().removeprefix("q=") or "1"
        try:
            wishes.append((float(weight), tag.strip().lower()))
        except ValueError:
            continue
    for _, tag in sorted(wishes, key=lambda wish: -wish[0]):
        language = tag.split("-")[0]
        if language == "en":
            return "en"
        if language == "zh":
            return "zh-CN"
    return "en"
