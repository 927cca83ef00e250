"""The reasoning part of a reply, told from the answer. Knows tags in text, no template language and no tokens."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from octavo.engine.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """The tags between which a model thinks before it answers.

    `direct`: what it writes before an answer without reasoning, if the format has such a header; it is dropped.
    """

    open: str
    close: str
    direct: str = ""

    def control_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        """The control tokens within the tags: their text has to be seen although they are special."""
        names = tokenizer.control_pattern.findall("\0".join((self.open, self.close, self.direct)))
        return frozenset(i for name in names if (i := tokenizer.control_id(name)) is not None)


_FORMATS = (
    ReasoningFormat("<think>", "</think>"),
    ReasoningFormat("[THINK]", "[/THINK]"),
    ReasoningFormat("<seed:think>", "</seed:think>"),
    ReasoningFormat("<|START_THINKING|>", "<|END_THINKING|>"),
    ReasoningFormat("◁think▷", "◁/think▷"),
    ReasoningFormat("<thought>", "</thought>"),
    ReasoningFormat("<thinking>", "</thinking>"),
    ReasoningFormat("<reasoning>", "</reasoning>"),
    ReasoningFormat("<|channel>thought", "<channel|>"),
    ReasoningFormat(  # the <|end|> before the closing header is a special token and has no text
        "<|channel|>analysis<|message|>",
        "<|start|>assistant<|channel|>final<|message|>",
        direct="<|channel|>final<|message|>",
    ),
)


def detect_reasoning(template_source: str | None, tokenizer: Tokenizer) -> ReasoningFormat | None:
    """The tags of a model that can reason, or None: the pair its template writes, else a pair of tokens of its own.

    Of several pairs in a template, the one whose tags are tokens of this model is meant.
    """
    written = [known for known in _FORMATS if known.close in (template_source or "")]
    for known in written:
        if known.control_ids(tokenizer):
            return known
    if written:
        return written[0]
    for known in _FORMATS:
        if tokenizer.token_id(known.open) is not None and tokenizer.token_id(known.close) is not None:
            return known
    return None


def reasoning_left_open(prompt: str, known: ReasoningFormat | None) -> bool:
    """Whether the reply to a rendered prompt begins inside the reasoning, as its last tag was opened for it."""
    return known is not None and prompt.rstrip().endswith(known.open)


def split_reasoning(text: str, known: ReasoningFormat | None) -> tuple[str, str]:
    """(reasoning, answer) of a whole reply."""
    if known is None:
        return "", text
    splitter = ReasoningSplitter(known, is_open=False)
    parts = (splitter.push(text), splitter.flush())
    return "".join(part[0] for part in parts), "".join(part[1] for part in parts)


class _Place(enum.Enum):
    BEFORE = "before"  # nothing but blanks so far: the reasoning may still begin
    OPENED = "opened"  # the line break after the opening tag is layout
    INSIDE = "inside"
    CLOSED = "closed"  # line breaks after the closing tag are layout
    ANSWER = "answer"  # for good: a tag from here on is text


class ReasoningSplitter:
    """Splits a stream, however it is cut, into reasoning and answer.

    Only a tag that comes first opens the reasoning. What may become a tag is held back. Line breaks that lay out the
    tags belong to neither part.
    """

    def __init__(self, known: ReasoningFormat, is_open: bool) -> None:
        self._format = known
        self._place = _Place.OPENED if is_open else _Place.BEFORE
        self._held = ""

    @property
    def in_answer(self) -> bool:
        """True once every further piece is answer as it is: nothing is held back and no tag is looked for."""
        return self._place is _Place.ANSWER and not self._held

    @property
    def in_reasoning(self) -> bool:
        return self._place in (_Place.OPENED, _Place.INSIDE)

    def push(self, text: str) -> tuple[str, str]:
        """(reasoning, answer) that became certain."""
        if self._place is _Place.ANSWER:
            return "", text
        self._held += text
        reasoning = answer = ""
        before = None
        while self._held and before is not self._place:
            before = self._place
            match before:
                case _Place.BEFORE:
                    self._open()
                case _Place.OPENED:
                    self._skip_line_breaks(_Place.INSIDE)
                case _Place.INSIDE:
                    reasoning += self._reason()
                case _Place.CLOSED:
                    self._skip_line_breaks(_Place.ANSWER)
                case _Place.ANSWER:
                    answer, self._held = self._held, ""
        return reasoning, answer

    def flush(self) -> tuple[str, str]:
        """What is left when the stream ends; reasoning that was never closed ends here."""
        held, self._held = self._held, ""
        if self._place is _Place.INSIDE:
            return held, ""
        if self._place is _Place.BEFORE:
            return "", held
        return "", ""

    def _open(self) -> None:
        begun = self._held.lstrip()
        opening, direct = self._format.open, self._format.direct
        if begun.startswith(opening):
            self._held = begun[len(opening) :]
            self._place = _Place.OPENED
        elif direct and begun.startswith(direct):
            self._held = begun[len(direct) :]
            self._place = _Place.CLOSED
        elif not (opening.startswith(begun) or direct.startswith(begun)):
            self._place = _Place.ANSWER

    def _skip_line_breaks(self, then: _Place) -> None:
        self._held = self._held.lstrip("\r\n")
        if self._held:
            self._place = then

    def _reason(self) -> str:
        close = self._format.close
        end = self._held.find(close)
        if end >= 0:
            reasoning = self._held[:end].rstrip("\r\n")
            self._held = self._held[end + len(close) :]
            self._place = _Place.CLOSED
            return reasoning
        cut = len(self._held)
        for length in range(min(len(close) - 1, cut), 0, -1):
            if self._held.endswith(close[:length]):
                cut -= length
                break
        cut = len(self._held[:cut].rstrip("\r\n"))  # held, as layout if the tag follows
        reasoning, self._held = self._held[:cut], self._held[cut:]
        return reasoning
