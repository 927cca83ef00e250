"""ChatGPT's export as chats. conversations.json is a list of conversations, each a `mapping` of nodes with `parent` and
`children`; `current_node` is the end of the branch that was open.

A node may have no message, or one that nobody saw (system, tools, hidden context): what follows it then follows the
node before it. Several messages of the assistant in a row, as around a tool, are one reply here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from octavo.app.chat.store_records import ChatRecord
from octavo.app.chat.titles import make_title
from octavo.app.chat.types import Chat, ChatSettings, Message
from octavo.app.text import without_halves

Node = Mapping[str, Any]

PLACEHOLDERS = {"image_asset_pointer": "[picture]", "audio_asset_pointer": "[recording]"}
SEEN_TYPES = ("text", "multimodal_text", "code")
_CITATION = re.compile("\ue200[^\ue201]*\ue201")  # marks that mean something to ChatGPT's own page alone


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
        self._source = source
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
                children.sort(key=lambda key: order.index(key) if key in order else len(order))

    def _cut_loops(self) -> None:
        """A damaged file may lead in a circle: its node that stands first in the file then begins a conversation."""
        reached: set[str] = set()
        begun = set(self._children.get(None, []))
        for start in (*begun, *self._nodes):
            if start in reached:
                continue
            if start not in begun:
                start = self._first_of_loop(start)
                for children in self._children.values():
                    if start in children:
                        children.remove(start)
                self._children.setdefault(None, []).append(start)
            waiting = [start]
            while waiting:
                key = waiting.pop()
                if key not in reached:
                    reached.add(key)
                    waiting.extend(self._children.get(key, ()))

    def _first_of_loop(self, key: str) -> str:
        """Of the circle that a node's parents end in, the node that comes first in the file."""
        way: dict[str, None] = {}
        while key not in way:
            way[key] = None
            key = self._nodes[key]["parent"]
        loop = {key}
        while (key := self._nodes[key]["parent"]) not in loop:
            loop.add(key)
        return next(node for node in self._nodes if node in loop)

    def message_of(self, node: object) -> str:
        return self._became.get(node, "") if isinstance(node, str) else ""

    def messages(self) -> Iterator[Message]:
        """The turns, each after the one it follows. A reply waits for what else of it may come."""
        given: set[str] = set()
        stack: list[tuple[str, str | None, Message | None]] = [
            (key, None, None) for key in reversed(self._children.get(None, []))
        ]
        while stack:
            key, parent, waiting = stack.pop()
            message = self._message(key)
            if message is not None and message.role == "user":
                if waiting is not None:
                    if waiting.id not in given:
                        given.add(waiting.id)
                        yield waiting
                    parent = waiting.id
                yield replace(message, parent_id=parent)
                parent, waiting = message.id, None
            elif message is not None:
                waiting = _together(waiting, message) if waiting is not None else replace(message, parent_id=parent)
            self._became[key] = (
                message.id if message is not None else waiting.id if waiting is not None else parent or ""
            )
            children = self._children.get(key, [])
            if not children and waiting is not None and waiting.id not in given:
                given.add(waiting.id)
                yield waiting
            stack.extend((child, parent, waiting) for child in reversed(children))

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
            id=_short_id(f"{self._source}/{key}"),
            chat_id=_short_id(self._source),
            role="user" if role == "user" else "assistant",
            content=without_halves(text),
            reasoning=without_halves(reasoning),
            created_s=_seconds(raw.get("create_time")),
            model=model if isinstance(model, str) and role == "assistant" else None,
        )


def _together(first: Message, second: Message) -> Message:
    return replace(
        second,
        parent_id=first.parent_id,
        content="\n\n".join(filter(None, (first.content, second.content))),
        reasoning="\n\n".join(filter(None, (first.reasoning, second.reasoning))),
        created_s=first.created_s,
    )


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
