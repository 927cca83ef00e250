"""Source code to coloured HTML. The text content of the result is exactly the code."""

from __future__ import annotations

from functools import lru_cache
from html import escape

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

LONGEST_COLOURED = 20_000  # characters; colouring costs about 1 ms per 1,000, on every update while the block is open

_FORMATTER: HtmlFormatter = HtmlFormatter(nowrap=True)


def coloured(code: str, language: str) -> str:
    """HTML of `code` with a class on each token; merely escaped where the language is unknown or the code long."""
    lexer = _lexer(language.lower()) if language and len(code) <= LONGEST_COLOURED else None
    if lexer is None or "\ufeff" in code:  # lexers drop a byte order mark
        return escape(code, quote=False)
    if code.endswith("\n"):
        return highlight(code, lexer, _FORMATTER)
    return highlight(code + "\n", lexer, _FORMATTER).removesuffix("\n")  # a lexer reads a line by its end


@lru_cache(maxsize=128)
def _lexer(language: str) -> Lexer | None:
    try:
        return get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None
