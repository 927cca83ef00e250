"""What stands inside a line of a reply: emphasis that also works next to Chinese, formulas, three harmless tags, and
marks that a stopped reply left open.

A text that is cut (a reply that is being written, or was stopped) is parsed with `env["cut"]`, "growing" or "stopped":
what its last line opened and did not close is closed at its end, so that half a mark is not shown as a sign.
"""

from __future__ import annotations

import re
import unicodedata

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.rules_inline.state_inline import Delimiter
from markdown_it.token import Token

MOST_BRACKETS = 1000  # in one paragraph, heading or cell
MOST_MARKS = 4000
MATH_MARKS = {"\\(": "\\)", "\\[": "\\]", "$$": "$$"}
_MARKS = re.compile(r"[*_~`$<\\]")
_DOLLARS = re.compile(r"\$(?![\s$])((?:\\.|[^$\\\n`]){1,400}?)(?<!\s)\$(?![A-Za-z0-9_\u00c0-\u2e7f$])")
_BEFORE_MONEY = re.compile(r"[A-Za-z0-9_\u00c0-\u2e7f$\\]")
_COMMAND_OR_INDEX = re.compile(r"\\[A-Za-z]|[\^_][{\\A-Za-z0-9+*-]")
_SUM = re.compile(r"[A-Za-z0-9.,;:\s=<>+\-*/()\[\]|!']+")
_AMOUNT = re.compile(r"[\d.,\s]+[A-Za-z]?")
_BREAK = re.compile(r"<br\s*/?>(?:[ \t]*\n[ \t]*)?", re.IGNORECASE)  # with the end of its line, which would be another
_PAIR = re.compile(r"<(sub|sup|kbd)>([^<>\n]{1,200})</\1>", re.IGNORECASE)
_STRAY_MARKS = re.compile(r"(?:^|(?<=\s))(?:\*{1,3}|_{1,3}|~~|`+)\Z")  # nothing was written after them
_HALF_MARKS = re.compile(r"(?<=[^\s*~])(?:\*{1,2}|~{1,2})\Z")  # more of them may follow
_HALF_LINK = re.compile(r"!?\[([^\[\]\n]{0,300})\]\([^()\s]{0,2000}\Z")

# Where people write without blanks between words: a mark beside one of these has a word beside it (Unicode blocks from
# CJK Radicals to Halfwidth Forms, and the supplementary ideographs).
_CJK = re.compile(
    "[\u2e80-\u303f\u3040-\u31ff\u3200-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]"
)


def add_inline_rules(parser: MarkdownIt) -> None:
    """Put the rules of this module into a CommonMark parser."""
    inline = parser.inline.ruler
    inline.before("escape", "math_inline", _math_inline)
    inline.before("escape", "dollar_math", _dollar_math)
    inline.before("backticks", "open_code", _open_code)
    inline.at("emphasis", _emphasis)
    inline.before("autolink", "plain_tags", _plain_tags)
    parser.inline.ruler2.before("strikethrough", "open_marks", _close_open_marks)
    parser.core.ruler.before("inline", "cut", _find_cut)
    parser.core.ruler.before("inline", "swarms", _leave_swarms)


def _leave_swarms(state: StateCore) -> None:
    """A line of thousands of marks is no Markdown but a model gone astray. It is shown as it is: looking for the
    partner of every mark takes time that grows with their square, and every tab would wait for it."""
    for token in state.tokens:
        if token.type != "inline" or len(token.content) < MOST_BRACKETS:
            continue
        brackets = token.content.count("[")
        if brackets > MOST_BRACKETS or brackets + len(_MARKS.findall(token.content)) > MOST_MARKS:
            token.children = [Token("text", "", 0, content=token.content)]
            token.content = ""


# A cut text


def _find_cut(state: StateCore) -> None:
    """Remember which inline text is the last one: that is where a cut text ends."""
    state.env.pop("end", None)
    cut = state.env.get("cut")
    if not cut:
        return
    at = len(state.tokens) - 1
    while at >= 0 and (state.tokens[at].nesting == -1 or _is_empty_cell(state.tokens[at])):
        at -= 1
    if at < 0 or state.tokens[at].type != "inline":
        return
    last = state.tokens[at]
    last.children = []
    last.content = _STRAY_MARKS.sub("", last.content)
    if cut == "growing":
        last.content = _HALF_LINK.sub(r"\1", _HALF_MARKS.sub("", last.content))
    state.env["end"] = last.children


def _is_empty_cell(token: Token) -> bool:
    return token.type in ("td_open", "th_open") or (token.type == "inline" and not token.content)


def _is_cut(state: StateInline) -> bool:
    return state.env.get("end") is state.tokens


def _open_code(state: StateInline, silent: bool) -> bool:
    """A code span that a cut text did not close."""
    if state.src[state.pos] != "`" or silent or not _is_cut(state):
        return False
    start = state.pos
    end = start
    while end < state.posMax and state.src[end] == "`":
        end += 1
    marks = state.src[start:end]
    if re.search(rf"(?<!`){marks}(?!`)", state.src[end : state.posMax]):
        return False
    content = state.src[end : state.posMax].rstrip("`").replace("\n", " ")
    if content.strip():
        token = state.push("code_inline", "code", 0)
        token.markup, token.content = marks, content.removeprefix(" ")
    state.pos = state.posMax
    return True


def _close_open_marks(state: StateInline) -> None:
    """Close emphasis that a cut text left open, from the innermost outwards."""
    if not _is_cut(state):
        return
    marks = state.delimiters
    closers = {mark.end for mark in marks}
    enclosed_until = -1  # the farthest end of a pair that began before
    open_ones = []
    for at, mark in enumerate(marks):
        inside_word = mark.close and mark.length < 2
        if mark.end < 0 and mark.open and not inside_word and at not in closers and enclosed_until < at:
            open_ones.append(at)
        enclosed_until = max(enclosed_until, mark.end)
    for at in reversed(open_ones):
        mark = marks[at]
        token = state.push("text", "", 0)
        token.content = state.tokens[mark.token].content
        mark.end = len(marks)
        marks.append(Delimiter(mark.marker, mark.length, len(state.tokens) - 1, -1, False, True))


# Emphasis


def _emphasis(state: StateInline, silent: bool) -> bool:
    """CommonMark's rule, except that a Chinese, Japanese or Korean character beside a mark counts like a blank where
    there is punctuation on its other side: **“重点”**在这里 is bold."""
    marker = state.src[state.pos]
    if silent or marker not in "_*":
        return False
    scanned = state.scanDelims(state.pos, marker == "*")
    can_open, can_close = scanned.can_open, scanned.can_close
    if marker == "*":
        end = state.pos + scanned.length
        before = state.src[state.pos - 1] if state.pos > 0 else " "
        after = state.src[end] if end < state.posMax else " "
        can_open = can_open or (bool(_CJK.match(before)) and _is_punctuation(after))
        can_close = can_close or (bool(_CJK.match(after)) and _is_punctuation(before))
    for _ in range(scanned.length):
        token = state.push("text", "", 0)
        token.content = marker
        state.delimiters.append(Delimiter(ord(marker), scanned.length, len(state.tokens) - 1, -1, can_open, can_close))
    state.pos += scanned.length
    return True


def _is_punctuation(character: str) -> bool:
    return unicodedata.category(character)[0] in "PS"


# Formulas


def _math_inline(state: StateInline, silent: bool) -> bool:
    mark = state.src[state.pos : state.pos + 2]
    if mark not in MATH_MARKS:
        return False
    found = state.src.find(MATH_MARKS[mark], state.pos + 2, state.posMax)
    if found < 0:
        return _open_formula(state, silent)
    content = state.src[state.pos + 2 : found]
    if not content.strip() or (mark == "$$" and content.startswith("$")):
        return False
    if not silent:
        _push_formula(state, mark, content, state.src[state.pos : found + 2])
    state.pos = found + 2
    return True


def _open_formula(state: StateInline, silent: bool) -> bool:
    """A formula that a cut text did not close is shown as its source."""
    rest = state.src[state.pos + 2 : state.posMax]
    if silent or not _is_cut(state) or not rest.strip() or (state.src[state.pos] == "$" and rest[0].isspace()):
        return False
    token = state.push("math_source", "", 0)
    token.content = state.src[state.pos : state.posMax]
    state.pos = state.posMax
    return True


def _dollar_math(state: StateInline, silent: bool) -> bool:
    """$x^2$, where it cannot be money: no blank inside the signs, no letter or digit outside them, and written like a
    formula."""
    if state.src[state.pos] != "$" or (state.pos > 0 and _BEFORE_MONEY.match(state.src[state.pos - 1])):
        return False
    match = _DOLLARS.match(state.src, state.pos, state.posMax)
    if match is None or not _reads_like_a_formula(match.group(1)):
        return False
    if not silent:
        _push_formula(state, "$", match.group(1), match.group())
    state.pos = match.end()
    return True


def _reads_like_a_formula(content: str) -> bool:
    """A command or an index, or nothing but single letters, figures and signs that are no amount."""
    if _COMMAND_OR_INDEX.search(content):
        return True
    words = re.findall("[A-Za-z]+", content)
    is_sum = bool(words) and all(len(word) == 1 for word in words) and _SUM.fullmatch(content) is not None
    return is_sum and _AMOUNT.fullmatch(content) is None


def _push_formula(state: StateInline, mark: str, content: str, source: str) -> None:
    token = state.push("math_inline", "", 0)
    token.markup, token.content, token.info = mark, content, source


# Tags


def _plain_tags(state: StateInline, silent: bool) -> bool:
    """Line breaks and raised or lowered letters, which models write as HTML for want of anything else."""
    if state.src[state.pos] != "<":
        return False
    match = _BREAK.match(state.src, state.pos, state.posMax)
    if match is not None:
        if not silent:
            state.push("hardbreak", "br", 0)
        state.pos = match.end()
        return True
    match = _PAIR.match(state.src, state.pos, state.posMax)
    if match is None:
        return False
    if not silent:
        tag = match.group(1).lower()
        state.push(f"{tag}_open", tag, 1)
        token = state.push("text", "", 0)
        token.content = match.group(2)
        state.push(f"{tag}_close", tag, -1)
    state.pos = match.end()
    return True
