"""What a tab can ask of chats, apart from opening and sending: versions, branches, the list and its search."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from octavo.app.chat.patience import patiently
from octavo.app.chat.service import ChatService
from octavo.app.config import Settings
from octavo.app.host import ModelHost

Command = dict[str, Any]
Answer = Callable[..., None]

LONGEST_SEARCH = 200  # characters of what is looked for
MOST_TAGS = 20


class ChatCommands:
    """The handlers by the name of their command. `answer` sends messages to the tab that asked."""

    def __init__(self, service: ChatService, host: ModelHost, settings: Settings, answer: Answer) -> None:
        self._service = service
        self._host = host
        self._settings = settings
        self._answer = answer
        self.handlers: dict[str, Callable[[Command], Awaitable[None]]] = {
            "retry": self._retry,
            "continue": self._continue,
            "edit-reply": self._edit_reply,
            "version": self._version,
            "branch": self._branch,
            "remove-turn": self._remove_turn,
            "put-back": self._put_back,
            "stop": self._stop,
            "update": self._update,
            "delete": self._delete,
            "restore": self._restore,
            "keep": self._keep,
            "search": self._search,
            "reveal": self._reveal,
            "use-model": self._use_model,
            "switch-model": self._switch_model,
        }

    # Turns

    async def _retry(self, command: Command) -> None:
        await self._service.regenerate(_chat(command), _text(command, "id"))

    async def _continue(self, command: Command) -> None:
        await self._service.continue_reply(_chat(command))

    async def _edit_reply(self, command: Command) -> None:
        await self._service.edit_reply(_chat(command), _text(command, "id") or "", _text(command, "text") or "")

    async def _version(self, command: Command) -> None:
        step = command.get("step")
        if step in (-1, 1):
            await patiently(lambda: self._service.show_version(_chat(command), _text(command, "id") or "", step))

    async def _reveal(self, command: Command) -> None:
        """Show the version in which a search has found something."""
        await patiently(lambda: self._service.show_version(_chat(command), _text(command, "id") or ""))

    async def _branch(self, command: Command) -> None:
        chat = await patiently(lambda: self._service.branch_chat(_chat(command), _text(command, "id") or ""))
        self._answer({"k": "branched", "chat": chat.id})

    async def _remove_turn(self, command: Command) -> None:
        removed = await patiently(lambda: self._service.remove_turn(_chat(command), _text(command, "id") or ""))
        self._answer({"k": "removed", "chat": removed.chat_id, "id": removed.id, "what": removed.kind})

    async def _put_back(self, command: Command) -> None:
        await patiently(lambda: self._service.put_back(_chat(command), _text(command, "id") or ""))
        self._answer({"k": "put-back", "chat": _chat(command)})

    async def _stop(self, command: Command) -> None:
        self._service.stop(_chat(command))

    # The list

    async def _update(self, command: Command) -> None:
        title, tags, pinned = _text(command, "title"), command.get("tags"), command.get("pinned")
        known = [tag for tag in tags if isinstance(tag, str)][:MOST_TAGS] if isinstance(tags, list) else None
        await patiently(
            lambda: self._service.update_chat(
                _chat(command),
                title=(title or "").strip() or None,
                pinned=pinned if isinstance(pinned, bool) else None,
                folder=_text(command, "folder"),
                tags=known,
            )
        )

    async def _delete(self, command: Command) -> None:
        title = next((chat.title for chat in self._service.list_chats() if chat.id == _chat(command)), "")
        if await patiently(lambda: self._service.delete_chat(_chat(command))):
            self._answer({"k": "deleted", "chat": _chat(command), "title": title})

    async def _restore(self, command: Command) -> None:
        if await patiently(lambda: self._service.restore_chat(_chat(command))):
            self._answer({"k": "restored", "chat": _chat(command)})

    async def _keep(self, command: Command) -> None:
        chat = await patiently(lambda: self._service.keep_chat(_chat(command)))
        self._answer({"k": "kept", "from": _chat(command), "chat": chat.id})

    async def _search(self, command: Command) -> None:
        wanted = (_text(command, "text") or "")[:LONGEST_SEARCH]
        hits = await asyncio.to_thread(self._service.search, wanted)
        found = [[hit.chat_id, hit.message_id, hit.snippet] for hit in hits]
        self._answer({"k": "found", "text": _text(command, "text"), "hits": found})

    # The model of a chat

    async def _use_model(self, command: Command) -> None:
        await patiently(lambda: self._service.use_model(_chat(command)))

    async def _switch_model(self, command: Command) -> None:
        """Load the model of a chat in place of the one that is loaded."""
        chat = await patiently(lambda: self._service.get_chat(_chat(command)))
        if chat is None or chat.model is None or chat.model == self._host.model_id:
            return
        values = self._settings.values
        self._host.load(values.model_copy(update={"model": values.model.model_copy(update={"id": chat.model})}))


def _chat(command: Command) -> str:
    return str(command.get("chat"))


def _text(command: Command, field: str) -> str | None:
    value = command.get(field)
    return value if isinstance(value, str) else None
