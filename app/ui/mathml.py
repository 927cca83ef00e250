"""LaTeX to MathML that can do nothing but be drawn: known elements, known attributes, everything else escaped."""

from __future__ import annotations

import re
from functools import lru_cache
from html import escape, unescape
from xml.etree.ElementTree import Element

from latex2mathml.converter import Converter

LONGEST_FORMULA = 4000  # characters; longer ones stay source text, the converter is not linear

ELEMENTS = frozenset(
    {
        *("math", "mrow", "mi", "mn", "mo", "mtext", "mspace", "mfrac", "msqrt", "mroot", "msub", "msup", "msubsup"),
        *("mover", "munder", "munderover", "mtable", "mtr", "mtd", "mstyle", "mpadded", "mphantom", "menclose"),
    }
)
_UNDRAWN = re.compile(r"\\label\{[^{}]*\}|\\(?:nonumber|notag)(?![A-Za-z])")
_NUMBERED = re.compile(r"\\(begin|end)\{(align|alignat|gather|eqnarray)\}")
_CHEMISTRY = re.compile(r"\\ce\{((?:[^{}]|\{[^{}]*\})*)\}")
_CHEMICAL_PARTS = re.compile(
    r"(?P<arrow><=>|<->|->|<-)|(?P<count>(?<=[A-Za-z)\]])\d+)|\^\{?(?P<charge>\d*[+-])\}?"
    r"|(?P<sign>(?<=[A-Za-z0-9)\]])[+-](?=\s|$))|(?P<name>\\[A-Za-z]+|[A-Za-z]+)|(?P<blank>\s+)"
)
_ARROWS = {"<=>": r"\rightleftharpoons ", "<->": r"\leftrightarrow ", "->": r"\rightarrow ", "<-": r"\leftarrow "}
_WORD = re.compile(r"[a-z0-9 -]{1,40}\Z")
_LENGTH = re.compile(r"[+-]?\d{0,2}(\.\d{1,4})?(em|ex|pt|px|mu|%)?\Z")  # two digits: a formula cannot cover the page
_COLOUR = re.compile(r"(#[0-9a-fA-F]{3,8}|[a-zA-Z]{1,20})\Z")
_WORDS = (
    *("display", "stretchy", "fence", "form", "displaystyle", "scriptlevel", "accent", "accentunder", "movablelimits"),
    *("mathvariant", "columnalign", "columnlines", "rowlines", "notation", "separator", "symmetric", "largeop"),
)
_LENGTHS = ("width", "height", "depth", "lspace", "rspace", "linethickness", "minsize", "maxsize", "rowspacing")
ATTRIBUTES: dict[str, re.Pattern[str]] = {
    **dict.fromkeys(_WORDS, _WORD),
    **dict.fromkeys(_LENGTHS, _LENGTH),
    "mathcolor": _COLOUR,
}


@lru_cache(maxsize=512)
def mathml(latex: str, *, display: bool = False) -> str | None:
    """The formula as MathML, or None if it cannot be converted (then its source is the best picture of it)."""
    if not latex.strip() or len(latex) > LONGEST_FORMULA:
        return None
    latex = _NUMBERED.sub(r"\\\1{align*}", _UNDRAWN.sub("", latex))  # numbers would begin at 1 in every formula
    latex = _CHEMISTRY.sub(lambda match: _chemical(match.group(1)), latex)
    try:
        tree = Converter(display="block" if display else "inline").convert_to_element(latex)
    except Exception:  # the converter has a dozen error types and a few accidents (IndexError, RecursionError)
        return None
    pieces: list[str] = []
    try:
        _write(tree, pieces)
    except RecursionError:
        return None
    return "".join(pieces)


def _chemical(formula: str) -> str:
    """The commonest of what mhchem's \\ce takes, in plain LaTeX: counts, charges, names and arrows."""

    def plain(match: re.Match[str]) -> str:
        kind, text = match.lastgroup, match.group(match.lastgroup or 0)
        if kind == "arrow":
            return _ARROWS[text]
        if kind == "count":
            return f"_{{{text}}}"
        if kind in ("charge", "sign"):
            return f"^{{{text}}}"
        if kind == "blank":
            return r"\ "
        return text if text.startswith("\\") else rf"\text{{{text}}}"

    return _CHEMICAL_PARTS.sub(plain, formula)


def _write(element: Element, out: list[str]) -> None:
    known = element.tag in ELEMENTS
    if known:
        out.append(f"<{element.tag}")
        for name, value in element.attrib.items():
            pattern = ATTRIBUTES.get(name)
            if pattern is not None and pattern.match(value):
                out.append(f' {name}="{escape(value)}"')
        out.append(">")
    if element.text:
        out.append(escape(unescape(element.text)))  # the tree holds character references as plain text
    for child in element:
        _write(child, out)
        if child.tail:
            out.append(escape(unescape(child.tail)))
    if known:
        out.append(f"</{element.tag}>")
