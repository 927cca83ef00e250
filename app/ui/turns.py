"""One turn of a chat as the page shows it: what was said, drawn, and what is to be said about it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from octavo.app.chat.types import Append, Message, Progress, Remark, ReplyStats
from octavo.app.ui.render import BlockRenderer


class Turn:
    """A message with its drawing. `version` rises with every change of what stands around the text."""

    def __init__(self, message: Message) -> None:
        self.message = message
        self.version = 0
        self.progress: Progress | None = None
        self.notices: list[Remark] = []
        self.drawing = 0  # rises when what was drawn so far is void
        self._answer = BlockRenderer()
        self._thought = BlockRenderer()
        self._thought_from_s: float | None = None
        self._thought_for_s: float | None = None
        self._drawn = False
        self._begin_thought()

    @property
    def id(self) -> str:
        return self.message.id

    @property
    def live(self) -> bool:
        """It is still being written."""
        return self.message.status == "streaming"

    @property
    def answer(self) -> BlockRenderer:
        self._draw()
        return self._answer

    @property
    def thought(self) -> BlockRenderer:
        self._draw()
        return self._thought

    @property
    def source(self) -> str:
        """The raw Markdown of the answer, without the reasoning."""
        return self.message.content

    def reset(self, message: Message) -> None:
        """Take over a picture of the whole message. What was drawn is kept where the new text only adds to it."""
        old, self.message = self.message, message
        self.version += 1
        if message.status == "streaming" and old.status != "streaming":
            self._reopen()
        self._begin_thought()
        if not self._drawn:
            return
        if message.content.startswith(old.content) and message.reasoning.startswith(old.reasoning):
            self._answer.feed(message.content[len(old.content) :])
            self._thought.feed(message.reasoning[len(old.reasoning) :])
        else:
            self._void()
        self._settle()

    def append(self, event: Append) -> None:
        """More text of the reply."""
        self._draw()
        message = self.message
        self.message = replace(
            message, content=message.content + event.text, reasoning=message.reasoning + event.reasoning
        )
        self._answer.feed(event.text)
        self._thought.feed(event.reasoning)
        if event.reasoning and self._thought_from_s is None:
            self._thought_from_s = time.monotonic()
            self.version += 1
        if event.text and self._thought_from_s is not None and self._thought_for_s is None:
            self._thought_for_s = time.monotonic() - self._thought_from_s
            self.version += 1
        if self.progress is not None:
            self.progress = None
            self.version += 1

    def set_progress(self, progress: Progress) -> None:
        self.progress = progress
        self.version += 1

    def add_notice(self, remark: Remark) -> None:
        if remark not in self.notices:
            self.notices.append(remark)
            self.version += 1

    def end(self, message: Message) -> None:
        """The reply is over; `message` is what was stored."""
        if self._thought_from_s is not None and self._thought_for_s is None:
            self._thought_for_s = time.monotonic() - self._thought_from_s
        self.progress = None
        self.reset(message)

    def about(self) -> dict[str, Any]:
        """What stands around the text, for the page."""
        message = self.message
        return {
            "status": message.status,
            "error": None if message.error is None else {"text": message.error, "code": message.error_code},
            "stats": _figures(message.stats),
            "progress": _progress(self.progress),
            "notices": [{"text": said.text, "code": said.code, "values": dict(said.values)} for said in self.notices],
            "thinking": self._thinking(),
            "model": message.model,
            "version": message.version,
            "versions": message.versions,
        }

    def _thinking(self) -> dict[str, Any] | None:
        if self._thought_from_s is None:
            return {"over": True, "seconds": None} if self.message.reasoning else None
        if self._thought_for_s is not None:
            return {"over": True, "seconds": round(self._thought_for_s, 1)}
        return {"over": False, "seconds": round(time.monotonic() - self._thought_from_s, 1)}

    @property
    def _hit_limit(self) -> bool:
        stats = self.message.stats
        return stats is not None and stats.reason == "length"

    def _begin_thought(self) -> None:
        """A reply first seen in the middle of its reasoning, which began about when the reply did."""
        message = self.message
        if self.live and message.reasoning and not message.content and self._thought_from_s is None:
            self._thought_from_s = time.monotonic() - max(0.0, time.time() - message.created_s)

    def _reopen(self) -> None:
        """The reply goes on: its end, drawn for good, may change again."""
        self.notices.clear()
        self._thought_from_s = self._thought_for_s = None
        self._void()

    def _void(self) -> None:
        self._answer, self._thought, self._drawn = BlockRenderer(), BlockRenderer(), False
        self.drawing += 1

    def _draw(self) -> None:
        if not self._drawn:
            self._drawn = True
            self._answer.feed(self.message.content)
            self._thought.feed(self.message.reasoning)
            self._settle()

    def _settle(self) -> None:
        if self._drawn and not self.live:
            stats = self.message.stats
            cut = self.message.status != "complete" or (stats is not None and stats.reason == "length")
            self._answer.finish(cut=cut)
            self._thought.finish(cut=cut)


def _figures(stats: ReplyStats | None) -> dict[str, Any] | None:
    if stats is None:
        return None
    return {
        "speed": round(stats.decode_tok_s, 1),
        "first": round(stats.first_token_s, 3),
        "prompt": stats.prompt_tokens,
        "cached": stats.cached_tokens,
        "tokens": stats.completion_tokens,
        "reason": stats.reason,
        "stopped_by": stats.stopped_by,
        "left_out": stats.left_out_turns,
        "drafted": stats.draft_tokens,
        "accepted": stats.accepted_tokens,
        "speedup": round(stats.speedup, 2),
    }


def _progress(progress: Progress | None) -> dict[str, Any] | None:
    if progress is None:
        return None
    return {
        "state": progress.state,
        "done": progress.done,
        "total": progress.total,
        "cached": progress.cached,
        "place": progress.place,
    }
