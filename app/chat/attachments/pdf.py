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

_PROTECTED = Refused("{name} is protected with a password.", "Save it without the password and attach it again.")


def read(file: BinaryIO) -> tuple[str, list[str]]:
    """The text with a line before each page that names it, and notices. Raises Refused."""
    try:
        reader = PdfReader(file, strict=False)
        if reader.is_encrypted and not reader.decrypt(""):
            raise _PROTECTED
        count = len(reader.pages)
    except DependencyError:  # an encryption that needs more than the password ""
        raise _PROTECTED from None
    except (PyPdfError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OSError):
        raise Refused("{name} is damaged or not a PDF file.", "Open it in a PDF reader and print it to PDF.") from None
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
        raise Refused(
            "{name} has no text in it; its pages are pictures.", "Run it through text recognition (OCR) first."
        )
    return "\n\n".join(pages), _notices(silent, count)


def _notices(silent: list[int], count: int) -> list[str]:
    notices = []
    if silent:
        some = ", ".join(map(str, silent[:5])) + (" …" if len(silent) > 5 else "")
        which = f"Page {some} of {{name}} has" if len(silent) == 1 else f"Pages {some} of {{name}} have"
        notices.append(f"{which} no text that can be read.")
    if count > MOST_PAGES:
        notices.append(f"Only the first {MOST_PAGES:,} pages of {{name}} were read.")
    return notices
