"""The text of a Word file (.docx: Office Open XML, ECMA-376), with its headings, lists and tables as Markdown.

The package is a zip file of XML parts. Only the document's own part is unpacked, up to a limit; a document type, the
only place for entities, is refused as ECMA-376 part 2 demands.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO
from xml.parsers import expat

from octavo.app.chat.attachments.refused import Refused
from octavo.app.chat.attachments.types import LONGEST_TEXT

LARGEST_PART_BYTES = 50 * 1024 * 1024
CHUNK_BYTES = 256 * 1024
DEEPEST = 500  # elements inside each other; Word's own stay below a hundred

MAIN = (  # WordprocessingML, transitional and strict
    "http://schemas.openxmlformats.org/wordprocessingml/2006/main",
    "http://purl.oclc.org/ooxml/wordprocessingml/main",
)
_FALLBACK = "http://schemas.openxmlformats.org/markup-compatibility/2006 Fallback"
_HEADING = re.compile(r"heading ?([1-6])|title", re.IGNORECASE)


def read(file: BinaryIO) -> tuple[str, list[tuple[str, dict[str, int | str]]]]:
    """The text, and no remarks. Raises Refused."""
    body = _Body()
    try:
        with zipfile.ZipFile(file) as package:
            for unpacked in body.feed_from(package, _document_part(package)):
                if body.length > LONGEST_TEXT:
                    body.cut()
                    break
                if unpacked > LARGEST_PART_BYTES:
                    raise Refused("bomb")
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, ValueError, OverflowError):
        raise Refused("damaged") from None
    except (zlib.error, expat.ExpatError):
        raise Refused("damaged") from None
    return body.text(), []


def _document_part(package: zipfile.ZipFile) -> str:
    names = set(package.namelist())
    if "word/document.xml" in names:
        return "word/document.xml"
    starts = (("xl/", "spreadsheet"), ("ppt/", "presentation"), ("META-INF/", "document"))
    found = (what for start, what in starts if any(name.startswith(start) for name in names))
    raise Refused("other", what=next(found, "archive"))


class _Body:
    """Collects Markdown lines from the events of the XML parser."""

    def __init__(self) -> None:
        self.length = 0
        self._blocks: list[str] = []  # paragraphs and tables
        self._text: list[str] = []  # of the open paragraph
        self._style = ""
        self._is_item = False
        self._level = 0
        self._in_text = False
        self._skipped = 0  # depth inside what is not shown: deleted text, the older spelling of a drawing
        self._depth = 0
        self._tables: list[list[list[list[str]]]] = []  # open tables: rows of cells of paragraphs

    def feed_from(self, package: zipfile.ZipFile, name: str) -> Iterator[int]:
        """Parse a part piece by piece; yields how many bytes were unpacked so far."""
        parser = expat.ParserCreate(namespace_separator=" ")
        parser.StartDoctypeDeclHandler = _refuse_doctype
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        parser.buffer_text = True
        size = 0
        with package.open(name) as stream:
            while chunk := stream.read(CHUNK_BYTES):
                size += len(chunk)
                parser.Parse(chunk, False)
                yield size
        parser.Parse(b"", True)

    def cut(self) -> None:
        """What is open ends here, so that its text counts."""
        self._close_paragraph()
        while self._tables:
            self._close_table(self._tables.pop())

    def text(self) -> str:
        lines: list[str] = []
        for block in self._blocks:
            item = block.lstrip().startswith(("- ",))
            if lines and not (item and lines[-1].lstrip().startswith("- ")):
                lines.append("")
            lines.append(block)
        return "\n".join(lines)

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > DEEPEST:
            raise Refused("damaged")
        if self._skipped:
            self._skipped += 1
            return
        space, _, tag = name.rpartition(" ")
        if name == _FALLBACK or (space in MAIN and tag in ("del", "moveFrom", "pict")):
            self._skipped = 1
        elif space not in MAIN:
            return
        elif tag == "p":
            self._text, self._style, self._is_item, self._level = [], "", False, 0
        elif tag == "pStyle":
            self._style = _value(attributes)
        elif tag == "numPr":
            self._is_item = True
        elif tag == "ilvl":
            self._level = min(8, int(_value(attributes))) if _value(attributes).isdigit() else 0
        elif tag == "t":
            self._in_text = True
        elif tag == "tab":
            self._text.append("\t")
        elif tag in ("br", "cr"):
            self._text.append("\n")
        elif tag == "noBreakHyphen":
            self._text.append("-")
        elif tag == "tbl":
            self._tables.append([])
        elif tag == "tr" and self._tables:
            self._tables[-1].append([])
        elif tag == "tc" and self._tables and self._tables[-1]:
            self._tables[-1][-1].append([])

    def _end(self, name: str) -> None:
        self._depth -= 1
        if self._skipped:
            self._skipped -= 1
            return
        space, _, tag = name.rpartition(" ")
        if space not in MAIN:
            return
        if tag == "t":
            self._in_text = False
        elif tag == "p":
            self._close_paragraph()
        elif tag == "tbl" and self._tables:
            self._close_table(self._tables.pop())

    def _characters(self, text: str) -> None:
        if self._in_text and not self._skipped:
            self._text.append(text)
            self.length += len(text)

    def _close_paragraph(self) -> None:
        # Tabs inside the properties of a paragraph (its tab stops) come before its text.
        text = "".join(self._text).strip()
        self._text = []
        if not text:
            return
        if self._tables and self._tables[-1] and self._tables[-1][-1]:
            self._tables[-1][-1][-1].append(text)
            return
        heading = _HEADING.match(self._style)
        if heading:
            text = f"{'#' * int(heading.group(1) or 1)} {' '.join(text.split())}"
        elif self._is_item:
            text = f"{'  ' * self._level}- {text}"
        self._blocks.append(text)

    def _close_table(self, table: list[list[list[str]]]) -> None:
        rows = [[" ".join(" ".join(cell).split()).replace("|", "\\|") for cell in row] for row in table if row]
        if not any(any(row) for row in rows):
            return
        if self._tables and self._tables[-1] and self._tables[-1][-1]:  # a table in a table's cell
            self._tables[-1][-1][-1].extend("; ".join(filter(None, row)) for row in rows)
            return
        width = max(len(row) for row in rows)
        lines = ["| " + " | ".join([*row, *[""] * (width - len(row))]) + " |" for row in rows]
        lines.insert(1, "|" + " --- |" * width)
        self._blocks.append("\n".join(lines))


def _value(attributes: dict[str, str]) -> str:
    return next((value for name, value in attributes.items() if name.rpartition(" ")[2] == "val"), "")


def _refuse_doctype(*_: object) -> None:
    raise Refused("doctype")
