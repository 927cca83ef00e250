"""Every word of the page, a module a language. Keys are the same in all of them; `{name}` is filled in by the page."""

from __future__ import annotations

from octavo.app.ui.strings import en, zh_cn

LANGUAGES: dict[str, dict[str, str]] = {"en": en.STRINGS, "zh-CN": zh_cn.STRINGS}


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
