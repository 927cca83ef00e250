"""Replies as blocks of safe HTML, while they are being written.

A Markdown text is a row of blocks, and text that is added at the end can only change the last of them. So a block is
rendered for good as soon as the next one has begun, and an update renders one block, however long the reply is.
"""

from __future__ import annotations

import re
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.token import Token

from octavo.app.ui.markdown import clean, make_parser

# A line that so far consists of marks alone may become anything: shown at the next piece of text.
_UNDECIDED_LINE = re.compile(r"(?:^|(?<=\n))[ \t]*(?:[-+*_=#>~`|: \t]+|\d{1,9}[.)]?[ \t]*|\\|\$\$?|\\\[)\Z")
_TABLE_HEAD = re.compile(r"(?:^|(?<=\n))[ \t]*\|[^\n]*\n?\Z")


def render(text: str, *, cut: bool = False) -> tuple[str, ...]:
    """All blocks of a finished text. `cut`: it was stopped, so what its end left open is closed."""
    return tuple(_rendered(_normalized(text), "stopped" if cut else None))


class BlockRenderer:
    """One growing text. `blocks` only ever gets longer, and after `finish` equals `render` of the whole text."""

    def __init__(self, text: str = "") -> None:
        self._blocks: list[str] = []
        self._tail = ""  # source from the first block that is not finished
        self._carriage_return = False  # at the end of what was fed: the next piece may begin with its line feed
        self._parsed_lines = 0  # complete lines of the tail that were looked at
        self._open: str | None = None
        self._finished = False
        self.length = 0  # characters fed so far
        if text:
            self.feed(text)

    @property
    def blocks(self) -> list[str]:
        """HTML of the finished blocks; do not change it."""
        self._advance()
        return self._blocks

    @property
    def open(self) -> str:
        """HTML of what may still change, as it looks now; "" if there is nothing."""
        self._advance()
        if self._open is None:
            self._open = "" if self._finished else _preview(self._tail)
        return self._open

    def feed(self, text: str) -> None:
        """More text at the end. Nothing is rendered before somebody looks."""
        self.length += len(text)
        if self._carriage_return:
            text = "\r" + text
        self._carriage_return = text.endswith("\r")
        self._tail += _normalized(text[:-1] if self._carriage_return else text)
        self._open = None

    def finish(self, *, cut: bool = False) -> None:
        """No more text: every block becomes final. `cut`: it was stopped."""
        if self._finished:
            return
        if self._carriage_return:
            self._tail += "\n"
        self._advance()
        self._blocks.extend(_rendered(self._tail, "stopped" if cut else None))
        self._tail, self._open, self._finished = "", "", True

    def _advance(self) -> None:
        """Render for good all blocks but the last, judged by complete lines: half a line can mean anything."""
        end = self._tail.rfind("\n") + 1
        lines = self._tail.count("\n", 0, end)
        if lines <= self._parsed_lines:
            return
        self._parsed_lines = lines
        starts = [group[0].map[0] for group in _groups(_outline().parse(self._tail[:end])) if group[0].map]
        if len(starts) < 2:
            return
        boundary = _offset_of_line(self._tail, starts[-1])
        finished, self._tail = self._tail[:boundary], self._tail[boundary:]
        self._blocks.extend(_rendered(finished))
        self._parsed_lines -= starts[-1]


def _preview(tail: str) -> str:
    """The unfinished end without the flicker of half-written marks."""
    shown = tail[: undecided.start()] if (undecided := _UNDECIDED_LINE.search(tail)) else tail
    groups = _groups(_outline().parse(shown))
    if groups and groups[-1][0].type == "paragraph_open" and (head := _TABLE_HEAD.search(shown)):
        shown = shown[: head.start()]  # the next line makes it a table
    return "".join(_rendered(shown, "growing"))


def _rendered(text: str, cut: str | None = None) -> list[str]:
    return [_html(group) for group in _groups(_parser().parse(text, {"cut": cut}))]


def _normalized(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _groups(tokens: list[Token]) -> list[list[Token]]:
    """Tokens of each outermost block."""
    groups: list[list[Token]] = []
    depth = 0
    for token in tokens:
        if depth == 0:
            groups.append([])
        groups[-1].append(token)
        depth += token.nesting
    return groups


def _html(group: list[Token]) -> str:
    parser = _parser()
    return clean(parser.renderer.render(group, parser.options, {})).rstrip("\n")


def _offset_of_line(text: str, line: int) -> int:
    at = 0
    for _ in range(line):
        at = text.index("\n", at) + 1
    return at


@cache
def _parser() -> MarkdownIt:
    return make_parser()


@cache
def _outline() -> MarkdownIt:
    """The same block rules without the work inside the blocks."""
    parser = make_parser()
    parser.core.ruler.enableOnly(["normalize", "block"])
    return parser
