"""One request's output: ids in, certain text out. Knows the order of the stations: characters, reasoning, stops."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from octavo.engine.text.reasoning import ReasoningFormat, ReasoningSplitter
from octavo.engine.text.stops import StopChecker
from octavo.engine.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Piece:
    """What a step adds: `text` of the answer and `reasoning`, both possibly empty.

    `used`: how many of the pushed ids count; all of them, or up to the one that completed `matched_stop`.
    """

    text: str = ""
    reasoning: str = ""
    matched_stop: str | None = None
    used: int = 0


class OutputText:
    """Turns the ids of one reply into text. Called after every step for every request: about 1 µs a token.

    Stop strings are looked for in the answer, not in the reasoning. Special tokens have no text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        *,
        stops: Collection[str] = (),
        reasoning: ReasoningFormat | None = None,
        reasoning_open: bool = False,
    ) -> None:
        self._detokenizer = tokenizer.detokenizer(
            prompt_ids, keep=reasoning.control_ids(tokenizer) if reasoning else ()
        )
        self._splitter = ReasoningSplitter(reasoning, reasoning_open) if reasoning else None
        self._stops = StopChecker(stops) if any(stops) else None
        self._matched: str | None = None

    def push(self, token_ids: Sequence[int]) -> Piece:
        """The text that became certain with these ids. After a stop string nothing counts any more."""
        if self._matched is not None:
            return Piece(matched_stop=self._matched)
        push = self._detokenizer.push
        if self._stops is None:
            text = push(token_ids[0]) if len(token_ids) == 1 else "".join([push(i) for i in token_ids])
            reasoning, text = self._split(text)
            return Piece(text, reasoning, None, len(token_ids))
        texts: list[str] = []
        reasonings: list[str] = []
        for count, token_id in enumerate(token_ids, start=1):
            reasoning, text = self._split(push(token_id))
            if reasoning:
                reasonings.append(reasoning)
            if text:
                certain, self._matched = self._stops.push(text)
                texts.append(certain)
                if self._matched is not None:
                    return Piece("".join(texts), "".join(reasonings), self._matched, count)
        return Piece("".join(texts), "".join(reasonings), None, len(token_ids))

    def finish(self) -> Piece:
        """What was held back, once the reply has ended. Even this last text may complete a stop string."""
        if self._matched is not None:
            return Piece(matched_stop=self._matched)
        reasoning, text = self._split(self._detokenizer.flush())
        if self._splitter is not None:
            last_reasoning, last_text = self._splitter.flush()
            reasoning, text = reasoning + last_reasoning, text + last_text
        if self._stops is not None:
            text, self._matched = self._stops.push(text)
            if self._matched is None:
                text += self._stops.flush()
        return Piece(text, reasoning, self._matched, 0)

    def _split(self, text: str) -> tuple[str, str]:
        """(reasoning, answer)"""
        if self._splitter is None or not text:
            return "", text
        return self._splitter.push(text)
