"""ChatGPT's export as chats. conversations.json is a list of conversations, each a `mapping` of nodes with `parent` and
`children`; `current_node` is the end of the branch that was open.

A node may have no message, or one that nobody saw (system, tools, hidden context): what follows it then follows the
node before it. Several messages of the assistant in a row, as around a tool, are one reply here. Where such a reply
branches midway, each version repeats its beginning, unless a file is made so that it would grow by that: from there on
the beginning is a turn of its own.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from octavo.app.chat.store_records import ChatRecord
from octavo.app.chat.titles import make_title
from octavo.app.chat.types import Chat, ChatSettings, Message
from octavo.app.text import without_halves

Node = Mapping[str, Any]

PLACEHOLDERS = {"image_asset_pointer": "[picture]", "audio_asset_pointer": "[recording]"}
REPEATED_CHARACTERS = 1 << 14  # beginnings of replies may be repeated to so much, and to the length of all texts
SEEN_TYPES = ("text", "multimodal_text", "code")
_CITATION = re.compile("\ue200[^\ue200\ue201]*\ue201")  # marks that mean something to ChatGPT's own page alone


def is_chatgpt(value: Mapping[str, Any]) -> bool:
    return isinstance(value.get("mapping"), dict)


def read_chatgpt(value: Mapping[str, Any]) -> ChatRecord:
    """One conversation, every branch of it. The same one always gets the same ids."""
    nodes = {key: node for key, node in value["mapping"].items() if isinstance(node, dict)}
    given = value.get("conversation_id") or value.get("id")
    source = given if isinstance(given, str) else repr(sorted(nodes))
    tree = _Tree(nodes, source)
    messages = tuple(tree.messages())
    by_id = {message.id: message for message in messages}
    active: list[str] = []
    shown = by_id.get(tree.message_of(value.get("current_node")))
    while shown is not None:
        active.append(shown.id)
        shown = by_id.get(shown.parent_id or "")
    created_s, title = _seconds(value.get("create_time")), value.get("title")
    chat = Chat(
        id=_short_id(source),
        title=make_title(title) if isinstance(title, str) else "",
        created_s=created_s,
        updated_s=_seconds(value.get("update_time")) or created_s,
    )
    return ChatRecord(chat, ChatSettings(), messages, tuple(active))


class _Tree:
    """The nodes of a conversation, and the turns they make."""

    def __init__(self, nodes: Mapping[str, Node], source: str) -> None:
        self._nodes = nodes
        self._chat_id = _short_id(source)
        self._beginning = hashlib.sha256(f"{source}/".encode("utf-8", "replace"))  # of every id: may be long
        self._children: dict[str | None, list[str]] = {}
        self._became: dict[str, str] = {}  # node: the turn it is, or is part of
        for key, node in nodes.items():
            parent = node.get("parent")
            known = isinstance(parent, str) and parent in nodes and parent != key
            self._children.setdefault(parent if known else None, []).append(key)
        self._cut_loops()
        for parent, children in self._children.items():
            order = nodes[parent].get("children") if parent is not None else None
            if isinstance(order, list):
                places: dict[str, int] = {}
                for place, key in enumerate(order):
                    if isinstance(key, str):
                        places.setdefault(key, place)
                children.sort(key=lambda key: places.get(key, len(order)))

    def _cut_loops(self) -> None:
        """A damaged file may lead in a circle: its node that stands first in the file then begins a conversation."""
        places = {key: place for place, key in enumerate(self._nodes)}
        begun = self._children.setdefault(None, [])
        reached: set[str] = set()
        self._reach(begun, reached)
        for key in self._nodes:
            if key in reached:
                continue
            start = min(self._loop_above(key), key=places.__getitem__)
            self._children[self._nodes[start]["parent"]].remove(start)
            begun.append(start)
            self._reach([start], reached)

    def _reach(self, starts: Iterable[str], reached: set[str]) -> None:
        """Add to `reached` what follows `starts`, and them."""
        waiting = list(starts)
        while waiting:
            key = waiting.pop()
            if key not in reached:
                reached.add(key)
                waiting.extend(self._children.get(key, ()))

    def _loop_above(self, key: str) -> set[str]:
        """The circle that the parents of a node end in."""
        way: set[str] = set()
        while key not in way:
            way.add(key)
            key = self._nodes[key]["parent"]
        loop = {key}
        while (key := self._nodes[key]["parent"]) not in loop:
            loop.add(key)
        return loop

    def message_of(self, node: object) -> str:
        return self._became.get(node, "") if isinstance(node, str) else ""

    def messages(self) -> Iterator[Message]:
        """The turns, each after the one it follows. A reply waits for what else of it may come."""
        given: set[str] = set()
        spare = REPEATED_CHARACTERS
        stack: list[tuple[str, str | None, _Reply | None]] = [
            (key, None, None) for key in reversed(self._children.get(None, []))
        ]
        while stack:
            key, parent, waiting = stack.pop()
            message = self._message(key)
            own = waiting.last.id if waiting is not None else parent or ""
            ended = None
            if message is not None:
                own = message.id
                spare += _length(message)
            if message is not None and message.role == "assistant":
                waiting = _Reply(message, waiting, _length(message) + (waiting.length if waiting is not None else 0))
            elif message is not None and waiting is not None:
                ended, waiting = waiting, None
            children = self._children.get(key, [])
            if waiting is not None:
                repeated = waiting.length * (len(children) - 1)
                if not children or repeated > spare:
                    ended, waiting = waiting, None
                else:
                    spare -= repeated
            if ended is not None:
                if ended.last.id not in given:
                    given.add(ended.last.id)
                    yield ended.whole(parent)
                parent = ended.last.id
            if message is not None and message.role == "user":
                yield replace(message, parent_id=parent)
                parent = message.id
            self._became[key] = own
            stack.extend((child, parent, waiting) for child in reversed(children))

    def _id(self, key: str) -> str:
        digest = self._beginning.copy()
        digest.update(key.encode("utf-8", "replace"))
        return digest.hexdigest()[:16]

    def _message(self, key: str) -> Message | None:
        """What people saw of a node."""
        raw = self._nodes[key].get("message")
        if not isinstance(raw, dict):
            return None
        author, content, about = (_object(raw.get(name)) for name in ("author", "content", "metadata"))
        role, kind = author.get("role"), content.get("content_type")
        hidden = about.get("is_visually_hidden_from_conversation") or raw.get("recipient", "all") != "all"
        if role not in ("user", "assistant") or hidden:
            return None
        reasoning = _thoughts(content) if kind == "thoughts" else ""
        text = _text(content) if kind in SEEN_TYPES else ""
        names = [item.get("name") for item in _list(about.get("attachments")) if isinstance(item, dict)]
        text = "\n\n".join([*(f"[{name}]" for name in names if isinstance(name, str)), text]).strip("\n")
        if not text and not reasoning:
            return None
        model = about.get("model_slug")
        return Message(
            id=self._id(key),
            chat_id=self._chat_id,
            role="user" if role == "user" else "assistant",
            content=without_halves(text),
            reasoning=without_halves(reasoning),
            created_s=_seconds(raw.get("create_time")),
            model=model if isinstance(model, str) and role == "assistant" else None,
        )


@dataclass(frozen=True, slots=True)
class _Reply:
    """Messages that become one reply, as a chain from its end, so that versions hold their common beginning once."""

    last: Message
    before: _Reply | None
    length: int  # characters of all of them

    def whole(self, parent: str | None) -> Message:
        parts = [self.last]
        link = self.before
        while link is not None:
            parts.append(link.last)
            link = link.before
        parts.reverse()
        return replace(
            self.last,
            parent_id=parent,
            content="\n\n".join(part.content for part in parts if part.content),
            reasoning="\n\n".join(part.reasoning for part in parts if part.reasoning),
            created_s=parts[0].created_s,
        )


def _length(message: Message) -> int:
    return len(message.content) + len(message.reasoning)


def _text(content: Mapping[str, Any]) -> str:
    if content.get("content_type") == "code":
        language = content.get("language")
        code = content.get("text")
        name = language if isinstance(language, str) and language != "unknown" else ""
        return f"```{name}\n{code}\n```" if isinstance(code, str) else ""
    parts: list[str] = []
    for part in _list(content.get("parts")):
        if isinstance(part, str):
            parts.append(_CITATION.sub("", part))
        elif isinstance(part, dict):
            spoken = part.get("text")
            kind = str(part.get("content_type"))
            parts.append(spoken if isinstance(spoken, str) else PLACEHOLDERS.get(kind, f"[{kind}]"))
    return "\n\n".join(filter(None, parts))


def _thoughts(content: Mapping[str, Any]) -> str:
    thoughts = [item.get("content") for item in _list(content.get("thoughts")) if isinstance(item, dict)]
    return "\n\n".join(thought for thought in thoughts if isinstance(thought, str))


def _short_id(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def _seconds(value: object) -> float:
    return (
        float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e11 else 0.0
    )


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
