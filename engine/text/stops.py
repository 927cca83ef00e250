"""Where a reply ends: stop strings in its text, end tokens of the model. Knows text and ids, no requests."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from octavo.engine.text.fallback import choose_fallback
from octavo.engine.text.tokenizer import Tokenizer

# Tokens with which chat formats end a turn. Each counts only where the vocabulary has it as a control token and the
# chat template writes it: the generation settings of many checkpoints name the end of text alone.
_TURN_ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|eot|>",
    "<end_of_turn>",
    "<turn|>",
    "<|end|>",
    "<|end_of_turn|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|return|>",
    "<|call|>",
    "<|endofturn|>",
    "<|role_end|>",
    "[|endofturn|]",
    "</s>",
    "<eos>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|end▁of▁sentence|>",
    "<｜end▁of▁sentence｜>",
)
_CHANNEL_MARK = "<|channel|>"  # formats with channels end every channel with <|end|>, not the reply


class StopChecker:
    """Finds the first of several stop strings in text that comes in pieces, however it is cut.

    Text is held back only while it may still be the beginning of a stop string. The match that is complete first
    counts, the longer one if two end together; nothing of it and nothing after it is emitted.
    """

    def __init__(self, stops: Collection[str]) -> None:
        self._stops = tuple(dict.fromkeys(stop for stop in stops if stop))
        self._longest = max(map(len, self._stops), default=0)
        firsts = "".join(re.escape(first) for first in sorted({stop[0] for stop in self._stops}))
        self._may_begin = re.compile(f"[{firsts}]" if firsts else r"(?!)")
        self._held = ""
        self._matched: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """(text that is certain, the stop string that is now complete or None). After a match nothing comes."""
        if self._matched is not None:
            return "", self._matched
        if not self._held and self._may_begin.search(text) is None:
            return text, None
        window = self._held + text
        found: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = window.find(stop)
            if start >= 0 and (found is None or (start + len(stop), start) < found[:2]):
                found = (start + len(stop), start, stop)
        if found is not None:
            self._held = ""
            self._matched = found[2]
            return window[: found[1]], self._matched
        hold_from = self._hold_from(window)
        self._held = window[hold_from:]
        return window[:hold_from], None

    def flush(self) -> str:
        """The text held back when the reply ends without a match."""
        held, self._held = self._held, ""
        return held

    def _hold_from(self, window: str) -> int:
        for match in self._may_begin.finditer(window, max(0, len(window) - self._longest + 1)):
            tail = window[match.start() :]
            if any(stop.startswith(tail) for stop in self._stops):
                return match.start()
        return len(window)


def stop_token_ids(
    tokenizer: Tokenizer,
    config: Mapping[str, Any],
    generation_config: Mapping[str, Any],
    *,
    template_source: str | None = None,
) -> frozenset[int]:
    """Every id that ends a reply: of tokenizer, config and generation_config, and the template's end-of-turn tokens.

    `template_source`: the template really used, if it is not the tokenizer's own (`ChatTemplate.source`).
    """
    ids = {tokenizer.eos_id}
    for settings in (config, generation_config):
        ids |= _end_ids(settings)
        if isinstance(text_part := settings.get("text_config"), Mapping):
            ids |= _end_ids(text_part)
    source = template_source or "\0".join(tokenizer.templates.values()) or choose_fallback(tokenizer).source
    for token in _TURN_ENDS:
        if token in source and not (token == "<|end|>" and _CHANNEL_MARK in source):
            ids.add(tokenizer.control_id(token))
    return frozenset(i for i in ids if i is not None)


def _end_ids(settings: Mapping[str, Any]) -> set[int | None]:
    value = settings.get("eos_token_id")
    values = value if isinstance(value, list | tuple) else [value]
    return {i for i in values if isinstance(i, int) and not isinstance(i, bool) and i >= 0}
