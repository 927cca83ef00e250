"""The text of a PDF file, page by page."""

from __future__ import annotations

import logging
from typing import BinaryIO

from pypdf import PdfReader
from pypdf.errors import DependencyError, PyPdfError

from octavo.app.chat.attachments.refused import Refused
from octavo.app.chat.attachments.types import LONGEST_TEXT

MOST_PAGES = 5000

logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it comments on every slip of every file


def read(file: BinaryIO) -> tuple[str, list[tuple[str, dict[str, int | str]]]]:
    """The text with a line before each page that names it, and remarks. Raises Refused."""
    try:
        reader = PdfReader(file, strict=False)
        if reader.is_encrypted and not reader.decrypt(""):
            raise Refused("locked")
        count = len(reader.pages)
    except DependencyError:  # an encryption that needs more than the password ""
        raise Refused("locked") from None
    except (PyPdfError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OSError):
        raise Refused("damaged") from None
    pages: list[str] = []
    silent: list[int] = []
    length = 0
    for number in range(min(count, MOST_PAGES)):
        try:
            text = reader.pages[number].extract_text().strip()
        except (
            PyPdfError,
            ArithmeticError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            RecursionError,
            OSError,
        ):
            text = ""
        if not text:
            silent.append(number + 1)
            continue
        pages.append(f"[page {number + 1}]\n{text}" if count > 1 else text)
        length += len(text)
        if length > LONGEST_TEXT:
            break
    if not pages:
        raise Refused("scanned")
    return "\n\n".join(pages), _remarks(silent, count)


def _remarks(silent: list[int], count: int) -> list[tuple[str, dict[str, int | str]]]:
    remarks: list[tuple[str, dict[str, int | str]]] = []
    if silent:
        remarks.append(("silent", {"pages": ", ".join(map(str, silent[:5])) + (" …" if len(silent) > 5 else "")}))
    if count > MOST_PAGES:
        remarks.append(("first", {"most": MOST_PAGES}))
    return remarks
