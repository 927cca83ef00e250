"""The Markdown that replies are written in: CommonMark, tables, strikethrough, formulas; no HTML, no pictures.

Raw HTML is shown as text. Formulas are `\\(...\\)`, `\\[...\\]`, `$$...$$`, `\\begin{align}` and its like; a single
dollar sign is a dollar sign, unless two of them enclose what can only be a formula (`inline` knows the rule).
Every rule decides a block by its own lines alone: link reference definitions, which reach back, are plain text.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping, Sequence
from html import escape
from typing import Any
from urllib.parse import urlsplit

import nh3
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_block import StateBlock, table
from markdown_it.rules_core import StateCore
from markdown_it.token import Token

from octavo.app.ui.highlight import coloured
from octavo.app.ui.inline import MATH_MARKS, add_inline_rules
from octavo.app.ui.mathml import ATTRIBUTES as MATH_ATTRIBUTES
from octavo.app.ui.mathml import ELEMENTS as MATH_ELEMENTS
from octavo.app.ui.mathml import mathml

MOST_COLUMNS = 200
LONG_INLINE = 60  # characters of a formula within a line; from there on it may be wider than a phone and scrolls
LINK_SCHEMES = ("http", "https", "mailto")
DIRECTED = ("paragraph_open", "heading_open", "bullet_list_open", "ordered_list_open", "blockquote_open", "table_open")

_ENVIRONMENT = re.compile(
    r"\\begin\{((?:equation|align|alignat|aligned|gather|gathered|multline|eqnarray|split|cases|[pbvBV]?matrix)\*?)\}"
)
_BARE_URL = re.compile(r"https?://[^\s<>\"'`]+[^\s<>\"'`.,;:!?)\]}*_~]", re.ASCII | re.IGNORECASE)
_TASK = re.compile(r"\[([ xX])\] ")


def make_parser() -> MarkdownIt:
    """A parser whose `parse` and `renderer` turn one reply's text into HTML that `clean` accepts unchanged."""
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": 60, "breaks": True}, renderer_cls=Renderer)
    parser.enable(["table", "strikethrough"]).disable(["reference", "html_block", "html_inline"])
    parser.validateLink = is_safe_link  # type: ignore[method-assign]
    parser.block.ruler.before(
        "fence", "math_block", _math_block, {"alt": ["paragraph", "reference", "blockquote", "list"]}
    )
    parser.block.ruler.at("table", _table, {"alt": ["paragraph", "reference"]})
    add_inline_rules(parser)
    parser.core.ruler.push("bare_links", _bare_links)
    parser.core.ruler.push("task_boxes", _task_boxes)
    parser.core.ruler.push("directions", _directions)
    return parser


def is_safe_link(url: str) -> bool:
    """Absolute http, https and mailto only: no script, no data, and no path on this server."""
    try:
        parts = urlsplit(url.strip())
    except ValueError:
        return False
    return parts.scheme.lower() in LINK_SCHEMES and bool(parts.netloc or parts.scheme.lower() == "mailto")


_CLEANER = nh3.Cleaner(
    tags={
        *("p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "hr", "br", "a", "div", "span"),
        *("strong", "em", "s", "sub", "sup", "kbd", "code", "pre", "table", "thead", "tbody", "tr", "th", "td"),
        *MATH_ELEMENTS,
    },
    attributes={
        "a": {"href", "title"},
        "ol": {"start", "dir"},
        "li": {"class"},
        "div": {"class"},
        "span": {"class"},
        "p": {"class", "dir"},
        "th": {"class"},
        "td": {"class"},
        **{tag: {"dir"} for tag in ("h1", "h2", "h3", "h4", "h5", "h6", "ul", "blockquote", "table")},
        **{tag: set(MATH_ATTRIBUTES) for tag in MATH_ELEMENTS},
    },
    url_schemes=set(LINK_SCHEMES),
    link_rel="noopener noreferrer",
    set_tag_attribute_values={"a": {"target": "_blank"}},
)


def clean(html: str) -> str:
    """The second net under the parser: drops every element, attribute and address that a reply has no use for."""
    return _CLEANER.clean(html)


class Renderer(RendererHTML):
    """HTML of the tokens that are ours, or that must not be what CommonMark makes of them."""

    def fence(self, tokens: Sequence[Token], idx: int, options: Any, env: MutableMapping[str, Any]) -> str:
        info = tokens[idx].info.strip().split(maxsplit=1)
        return _code(tokens[idx].content, info[0] if info else "")

    def code_block(self, tokens: Sequence[Token], idx: int, options: Any, env: MutableMapping[str, Any]) -> str:
        return _code(tokens[idx].content, "")

    def image(self, tokens: Sequence[Token], idx: int, options: Any, env: MutableMapping[str, Any]) -> str:
        """A picture would be fetched from wherever the model says; its address is shown instead."""
        source = str(tokens[idx].attrs.get("src", ""))
        name = escape(tokens[idx].content) or "image"
        if not is_safe_link(source) or tokens[idx].meta.get("linked"):
            return f'<span class="picture">{name}</span>'
        return f'<a href="{escape(source)}">{name} ({escape(urlsplit(source).netloc)})</a>'

    def link_open(self, tokens: Sequence[Token], idx: int, options: Any, env: MutableMapping[str, Any]) -> str:
        """Where a link really leads is always said, whatever its text or title pretends."""
        tokens[idx].attrSet("title", str(tokens[idx].attrs.get("href", "")))
        return str(self.renderToken(tokens, idx, options, env))

    def math_inline(self, tokens: Sequence[Token], idx: int, options: Any, env: MutableMapping[str, Any]) -> str:
        token = tokens[idx]
        display = token.markup in ("\\[", "$$")
        formula = mathml(token.content, display=display)
        if formula is None:
            return f'<span class="math-source">{escape(token.info)}</span>'
        kind = "display" if display else "inline long" if len(token.content) > LONG_INLINE else "inline"
        return f'<span class="math {kind}">{formula}</span>'

    def math_source(self, tokens: Sequence[Token], idx: int, options: Any, env: MutableMapping[str, Any]) -> str:
        return f'<span class="math-source">{escape(tokens[idx].content)}</span>'

    def math_block(self, tokens: Sequence[Token], idx: int, options: Any, env: MutableMapping[str, Any]) -> str:
        formula = mathml(tokens[idx].content, display=True) if tokens[idx].meta["closed"] else None
        if formula is None:
            return f'<p class="math-source" dir="auto">{escape(tokens[idx].info)}</p>\n'
        return f'<div class="math display">{formula}</div>\n'


def _code(code: str, language: str) -> str:
    label = f'<span class="lang">{escape(language[:40])}</span>' if language else ""
    body = coloured(code.removesuffix("\n"), language)
    return f'<div class="code"><div class="code-head">{label}</div><pre><code>{body}</code></pre></div>\n'


def _table(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """A table of any sensible width: what has hundreds of columns is text."""
    if state.src.count("|", state.bMarks[start], state.eMarks[start]) > MOST_COLUMNS:
        return False
    return table(state, start, end, silent)


def _math_block(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """A formula that begins its line. It ends with its closing mark, a blank line or its container; unclosed, it is
    shown as source. Text after the closing mark makes the whole a paragraph."""
    if state.is_code_block(start):
        return False
    begin = state.bMarks[start] + state.tShift[start]
    environment = _ENVIRONMENT.match(state.src, begin, state.eMarks[start])
    mark = environment.group() if environment else state.src[begin : begin + 2]
    if environment is None and (mark not in ("\\[", "$$") or state.src[begin + 2 : begin + 3] == "$"):
        return False
    if silent:
        return not (mark == "$$" and _closes_formula(state, start))
    closing = f"\\end{{{environment.group(1)}}}" if environment else MATH_MARKS[mark]
    rest = ""
    closed = False
    line = start
    while line < end and not state.isEmpty(line):
        if line > start and state.sCount[line] < state.blkIndent:
            break
        at = state.bMarks[line] + state.tShift[line] + (len(mark) if line == start else 0)
        found = state.src.find(closing, at, state.eMarks[line])
        line += 1
        if found >= 0:
            closed, rest = True, state.src[found + len(closing) : state.eMarks[line - 1]].strip()
            break
    source = state.getLines(start, line, state.blkIndent, False).strip()
    state.line = line
    if rest:
        token = state.push("paragraph_open", "p", 1)
        token.map = [start, line]
        token = state.push("inline", "", 0)
        token.content, token.map, token.children = source, [start, line], []
        state.push("paragraph_close", "p", -1)
        return True
    token = state.push("math_block", "", 0)
    token.block, token.map = True, [start, line]
    token.content = source[2:-2] if closed and not environment else source
    token.info, token.markup = source, mark
    token.meta = {"closed": closed}
    return True


def _closes_formula(state: StateBlock, line: int) -> bool:
    """Whether the paragraph above has opened a $$ that this line's closes."""
    above = state.getLines(state.line, line, state.blkIndent, False)
    return above.count("$$") % 2 == 1


def _bare_links(state: StateCore) -> None:
    """Addresses written without brackets become links."""
    for block in state.tokens:
        if block.type != "inline" or not block.children or "://" not in block.content:
            continue
        children: list[Token] = []
        depth = 0
        for token in block.children:
            depth += {"link_open": 1, "link_close": -1}.get(token.type, 0)
            if token.type == "image" and depth > 0:
                token.meta["linked"] = True  # a link inside a link is none
            if token.type == "text" and depth == 0:
                children.extend(_split_links(token))
            else:
                children.append(token)
        block.children = children


def _split_links(token: Token) -> list[Token]:
    out: list[Token] = []
    at = 0
    for match in _BARE_URL.finditer(token.content):
        url = match.group()
        if url.count("(") > url.count(")") and token.content[match.end() : match.end() + 1] == ")":
            url += ")"
        if match.start() < at or not is_safe_link(url):
            continue
        out.append(_text(token, token.content[at : match.start()]))
        out.append(Token("link_open", "a", 1, attrs={"href": url}, level=token.level))
        out.append(_text(token, url))
        out.append(Token("link_close", "a", -1, level=token.level))
        at = match.start() + len(url)
    out.append(_text(token, token.content[at:]))
    return [part for part in out if part.type != "text" or part.content]


def _text(token: Token, content: str) -> Token:
    return Token("text", "", 0, content=content, level=token.level)


def _task_boxes(state: StateCore) -> None:
    for before, paragraph, inline in zip(state.tokens, state.tokens[1:], state.tokens[2:]):
        if before.type != "list_item_open" or paragraph.type != "paragraph_open" or not inline.children:
            continue
        first = inline.children[0]
        match = _TASK.match(first.content) if first.type == "text" else None
        if match is not None:
            first.content = ("☐ " if match.group(1) == " " else "☑ ") + first.content[match.end() :]
            before.attrSet("class", "task")


def _directions(state: StateCore) -> None:
    """Every block takes its direction from its first strong character; cells say their alignment by a class."""
    for token in state.tokens:
        if token.type in DIRECTED:
            token.attrSet("dir", "auto")
        elif token.type in ("th_open", "td_open"):
            style = str(token.attrs.pop("style", ""))
            if style.startswith("text-align:"):
                token.attrSet("class", style.removeprefix("text-align:"))
