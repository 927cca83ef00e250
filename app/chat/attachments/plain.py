"""Bytes of a text file to text: which encoding it is in, and whether it is a text at all."""

from __future__ import annotations

import codecs
import re

from octavo.app.chat.attachments.types import AttachmentError, remark
from octavo.app.chat.types import Remark

_MARKS = (  # byte order marks, the longer one first where one begins like another
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f]")  # not tab, line ends, form feed and escape (colours of logs)
_COMMON_HAN = re.compile("[\u4e00-\u9fff\u3000-\u303f\uff00-\uffef]")
_OTHER = re.compile(r"[^\x00-\x7f]")


def decode(name: str, data: bytes, *, what: str | None = None) -> tuple[str, tuple[Remark, ...]]:
    """The text and remarks about it. `what` it is if it should be no text. Raises AttachmentError."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return _clean(data[len(mark) :].decode(encoding, "replace")), ()
    if what is None or not _CONTROLS.search(data[:4096].decode("latin-1")):
        try:
            text = data.decode("utf-8")
            if not _is_binary(text):
                return _clean(text), ()
        except UnicodeDecodeError:
            pass
        guessed = _guess(data)
        if guessed is not None and not _is_binary(guessed[1]):
            encoding, text = guessed
            return _clean(text), (remark("guessed", name=name, encoding=encoding),)
    raise AttachmentError("other", name=name, what=what) if what else AttachmentError("unknown", name=name)


def _guess(data: bytes) -> tuple[str, str] | None:
    """Texts from before UTF-8: UTF-16 without a mark, the Chinese national encoding, else the Western code page."""
    for encoding, zeros in (("UTF-16", data[1:2000:2]), ("UTF-16 (big-endian)", data[0:2000:2])):
        if len(data) % 2 == 0 and zeros.count(0) * 10 > len(zeros) * 6:
            try:
                return encoding, data.decode("utf-16-le" if encoding == "UTF-16" else "utf-16-be")
            except UnicodeDecodeError:
                return None
    try:
        text = data.decode("gb18030")
        others = _OTHER.findall(text)
        if len(_COMMON_HAN.findall(text)) * 10 > len(others) * 9 and not _are_accents(others):
            return "GB 18030", text
    except UnicodeDecodeError:
        pass
    text = data.decode("cp1252", "replace")
    # A text is mostly letters: bytes that mean nothing, or nothing but signs, are something else.
    strange = sum(1 for c in text if c == "\ufffd" or (c > "\x7f" and not c.isalpha()))
    return None if strange * 5 > len(text) else ("Western European (Windows-1252)", text)


def _are_accents(characters: list[str]) -> bool:
    """Whether these are rather Western letters with accents, each read together with the plain letter behind it: few
    Chinese characters have a Latin letter as their second byte."""
    some = characters[:10_000]
    return sum(c.encode("gb18030")[1:2].isalpha() for c in some) * 2 > len(some)


def _is_binary(text: str) -> bool:
    """More than a stray control character in a thousand: no text."""
    start = text[:100_000]
    return "\x00" in start or len(_CONTROLS.findall(start)) * 1000 > len(start)


def _clean(text: str) -> str:
    """Line ends as one character, and nothing that a database or a terminal would stumble over."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\ufeff", "")
    return text.replace("\x00", "").encode("utf-8", "replace").decode("utf-8")
