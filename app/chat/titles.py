"""Titles of chats, made from what was said, without asking a model."""

from __future__ import annotations

import re
from collections.abc import Collection

from octavo.app.text import without_halves

TITLE_LENGTH = 60
_NUMBERED = re.compile(r"(.*) \((\d{1,4})\)", re.DOTALL)


def make_title(text: str) -> str:
    """A chat's title: the text on one line, cut between words."""
    line = " ".join(without_halves(text).split())
    if len(line) <= TITLE_LENGTH:
        return line
    cut = line[:TITLE_LENGTH]
    return (cut.rsplit(" ", 1)[0] if " " in cut else cut).rstrip(",;:.") + "…"


def title_of_copy(title: str, taken: Collection[str] = ()) -> str:
    """The title with a number behind it: the first one, higher than its own, that none of the `taken` has."""
    if not title:
        return ""
    numbered = _NUMBERED.fullmatch(title)
    stem, number = (numbered[1], int(numbered[2])) if numbered else (title, 1)
    while (copy := f"{stem} ({(number := number + 1)})") in taken:
        pass
    return copy
