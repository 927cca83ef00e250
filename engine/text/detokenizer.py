"""Text from tokens as they arrive. Knows bytes and characters; stop strings and reasoning are the next stations."""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

_MARK = "\N{REPLACEMENT CHARACTER}"
_LONGEST_CHARACTER = 4  # bytes of a character in UTF-8 (RFC 3629)


class Detokenizer(ABC):
    """One request's way from ids to text, fed a token at a time.

    The texts of all pushes plus `flush()` are exactly `Tokenizer.decode` of the reply as the prompt's continuation.
    """

    @abstractmethod
    def push(self, token_id: int) -> str:
        """The text that became certain with this token; "" while a character is incomplete. Never raises."""

    @abstractmethod
    def flush(self) -> str:
        """What is left at the end of the reply. A half character is dropped: its other half can still be generated
        when the reply is continued."""


class ByteDetokenizer(Detokenizer):
    """For vocabularies whose entries stand for bytes: a table look-up and an incremental UTF-8 decoder.

    At most three bytes are held back. Bytes that can never become a character turn into U+FFFD at once.
    """

    def __init__(self, table: Mapping[int, bytes], prompt_ids: Sequence[int] = (), *, drop_first_blank: bool) -> None:
        self._table = table
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._decode = self._decoder.decode
        self._at_start = drop_first_blank and not any(table[token_id] for token_id in prompt_ids[:8])
        if tail := _incomplete_tail(table, prompt_ids):
            self._decode(tail)

    def push(self, token_id: int) -> str:
        text = self._decode(self._table[token_id])
        if self._at_start and text:
            self._at_start = False
            return text.removeprefix(" ")
        return text

    def flush(self) -> str:
        self._decoder.reset()
        return ""


class WindowDetokenizer(Detokenizer):
    """For any other vocabulary: decodes a short window of tokens twice and emits what the newest ones added.

    The window is the tokens of the last emission and those after it, so the work for a token does not grow.
    """

    _CONTEXT = 6  # prompt tokens that can still change how the first token of the reply is written
    _PATIENCE = 4  # tokens after which an undecodable end is shown as it is

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt_ids: Sequence[int] = ()) -> None:
        self._decode = decode
        self._shown = list(prompt_ids[-self._CONTEXT :])
        self._shown_text = decode(self._shown) if self._shown else ""
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        self._pending.append(token_id)
        text = self._decode(self._shown + self._pending)
        added = text[len(self._shown_text) :]
        if not added or (added.endswith(_MARK) and len(self._pending) < self._PATIENCE):
            if len(self._pending) >= self._CONTEXT:  # only ids without text: they need not be looked at again
                self._pending.clear()
            return ""
        return self._emit(added)

    def flush(self) -> str:
        if not self._pending:
            return ""
        added = self._decode(self._shown + self._pending)[len(self._shown_text) :]
        return self._emit(added.rstrip(_MARK))

    def _emit(self, added: str) -> str:
        self._shown = self._pending
        self._shown_text = self._decode(self._shown)
        self._pending = []
        return added


def complete_text(data: bytes) -> str:
    """UTF-8 decoded with U+FFFD for invalid bytes and without a half character at the end."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data)


def _incomplete_tail(table: Mapping[int, bytes], ids: Sequence[int]) -> bytes:
    """The bytes of a character that the last of `ids` began and did not end."""
    tail = b""
    for token_id in reversed(ids):
        tail = table[token_id] + tail
        if len(tail) >= _LONGEST_CHARACTER:
            break
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(tail)
    pending: bytes = decoder.getstate()[0]
    return pending
