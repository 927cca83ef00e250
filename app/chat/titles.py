"""Titles of chats, made from what was said, without asking a model."""

from __future__ import annotations

import re

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


def title_of_copy(title: str) -> str:
    """The title with a number behind it, one higher than before."""
    if not title:
        return ""
    numbered = _NUMBERED.fullmatch(title)
    return f"{numbered[1]} ({int(numbered[2]) + 1})" if numbered else f"{title} (2)"
