"""What is done to the turns of a chat: whether it may be done now, what it stores, which reply it begins."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from octavo.app.chat.errors import ChatBusyError, ChatError, OtherModelError, StaleChatError, UnknownChatError
from octavo.app.chat.news import News
from octavo.app.chat.replies import Replies
from octavo.app.chat.shelves import Shelves
from octavo.app.chat.store import StoreBusyError
from octavo.app.chat.store_removal import Removed
from octavo.app.chat.titles import make_title
from octavo.app.chat.types import Attachment, Chat, Message, Shown, UserTurn
from octavo.app.host import ModelHost


class Turns:
    """The turns of all chats, each as far as it is written.

    What changes them raises ChatError where it may not be done now and StoreBusyError while another process writes to
    the file; then nothing was changed. What begins a reply belongs to the event loop, the rest to any thread.
    """

    def __init__(
        self, shelves: Shelves, host: ModelHost, replies: Replies, news: News, taking_in: asyncio.Lock
    ) -> None:
        """`taking_in` is held while turns from elsewhere are added to a chat."""
        self._shelves = shelves
        self._host = host
        self._replies = replies
        self._news = news
        self._taking_in = taking_in
        self._removed: dict[str, Removed] = {}  # what was taken out of chats last, by chat
        self._closed = False

    def close(self) -> None:
        """Refuse all changes from now on."""
        self._closed = True

    def chat(self, chat_id: str) -> Chat | None:
        """The chat's shown branch; a reply that is being written is shown as far as it is."""
        ended = self._replies.unsaved  # before reading too: one may be stored meanwhile
        chat = self._shelves.of(chat_id).get_chat(chat_id)
        if chat is None:
            return None
        newer = {**ended, **self.unsaved(chat_id)}
        return replace(chat, messages=tuple(as_far_as(newer, message) for message in chat.messages))

    def unsaved(self, chat_id: str) -> dict[str, Message]:
        """Replies that are further than on disk, by id: those that have ended, and the chat's running one."""
        running = self._replies.running(chat_id)
        return {**self._replies.unsaved, **({} if running is None else {running.id: running})}

    def idle_chat(self, chat_id: str) -> Chat:
        """A chat in which no reply runs, as it is on disk. Raises ChatError where it may not be changed."""
        if self._closed:
            raise ChatError("Octavo is shutting down.", remedy="Start it again first.", code="closing")
        chat = self._shelves.of(chat_id).get_chat(chat_id)
        if chat is None:
            raise UnknownChatError
        if chat_id in self._replies:
            raise ChatBusyError
        return chat

    def send(
        self,
        chat_id: str,
        text: str,
        after: str | None,
        beside: str | None,
        nonce: str | None,
        attachments: Sequence[Attachment],
    ) -> Message:
        """One try at `ChatService.send`: store the turn and the beginning of its reply, or nothing."""
        store = self._shelves.of(chat_id)
        earlier = None if nonce is None else store.find_nonce(chat_id, nonce)
        replies = [] if earlier is None else [m for m in store.replies_to(earlier.id) if m.role == "assistant"]
        if replies:
            return self._as_known(replies[-1])
        chat = self._chat_for_reply(chat_id)
        if earlier is not None:  # its reply was deleted since
            return self._start_reply(self._add_reply(chat, earlier))
        if after is not None and beside is None and (not chat.messages or chat.messages[-1].id != after):
            raise StaleChatError
        with store.together():
            turn = store.add_message(chat_id, "user", text, beside_id=beside, nonce=nonce, attachments=attachments)
            if not chat.title:
                store.update_chat(chat_id, title=make_title(text or attachments[0].name))
            message = self._add_reply(chat, turn)
        self._news.chat(chat_id).publish(UserTurn(turn))
        return self._start_reply(message)

    def regenerate(self, chat_id: str, message_id: str | None) -> Message:
        """Begin another reply beside `message_id`, or to the chat's last user turn."""
        chat = self._chat_for_reply(chat_id)
        turns = chat.messages if message_id is None else self._shelves.of(chat_id).branch(message_id)
        turn = next((message for message in reversed(turns) if message.role == "user"), None)
        if turn is None or turn.chat_id != chat_id:
            raise ChatError("There is nothing to reply to yet.", remedy="Send a message first.", code="nothing")
        return self._start_reply(self._add_reply(chat, turn))

    def continue_reply(self, chat_id: str) -> Message:
        """Begin the rest of the chat's last reply."""
        chat = self._chat_for_reply(chat_id)
        last = chat.messages[-1] if chat.messages else None
        if last is None or last.role != "assistant" or not (last.content or last.reasoning):
            raise ChatError("There is no reply to go on with.", remedy="Send a message first.", code="nothing")
        if last.id in self._replies.unsaved:
            raise StoreBusyError("This reply is not saved yet.", remedy="Try again in a moment.")
        return self._start_reply(self._shelves.of(chat_id).reopen_reply(last.id, self._model_name()))

    def edit_reply(self, chat_id: str, message_id: str, text: str) -> Message:
        """Add a version of a reply, written by the user."""
        self.idle_chat(chat_id)
        store = self._shelves.of(chat_id)
        old = store.get_message(message_id)
        if old is None or old.chat_id != chat_id or old.role != "assistant":
            raise UnknownChatError
        edited = store.add_message(chat_id, "assistant", text, beside_id=message_id, model=old.model)
        self.tell_shown(chat_id)
        self._news.changed(chat_id)
        return edited

    def show_version(self, chat_id: str, message_id: str, step: int) -> None:
        """Show the version of a turn `step` places after `message_id`."""
        store = self._shelves.of(chat_id)
        versions = store.versions(message_id)
        if message_id not in versions:
            raise UnknownChatError
        at = max(0, min(len(versions) - 1, versions.index(message_id) + step))
        store.show(chat_id, versions[at])
        self.tell_shown(chat_id)

    def remove(self, chat_id: str, message_id: str) -> Removed:
        """Take a turn out of a chat; `put_back` undoes it until another one is taken out, or `forget`."""
        self.idle_chat(chat_id)
        if self._taking_in.locked():  # an import may be about to put something after it
            raise ChatError("Chats are being imported.", remedy="Delete it when that is done.", code="importing")
        if any(message.chat_id == chat_id for message in self._replies.unsaved.values()):
            raise StoreBusyError("A reply of this chat is not saved yet.", remedy="Try again in a moment.")
        removed = self._removed[chat_id] = self._shelves.of(chat_id).remove_turn(chat_id, message_id)
        self.tell_shown(chat_id)
        return removed

    def put_back(self, chat_id: str, message_id: str) -> None:
        """Undo `remove`."""
        self.idle_chat(chat_id)
        removed = self._removed.get(chat_id)
        if removed is None or removed.id != message_id or not self._shelves.of(chat_id).put_back(removed):
            raise ChatError(
                "This can no longer be undone.",
                code="too_late",
                remedy="The chat has changed since: reload the page to see it.",
            )
        del self._removed[chat_id]
        self.tell_shown(chat_id)

    def forget(self, removed: Removed) -> None:
        """What was removed can no longer be put back."""
        if self._removed.get(removed.chat_id) is removed:
            del self._removed[removed.chat_id]

    def tell_shown(self, chat_id: str) -> None:
        """Show everybody who looks at the chat the branch that is shown now."""

        def shown() -> Shown | None:
            chat = self.chat(chat_id)
            return None if chat is None else Shown(chat.messages)

        self._news.tell(chat_id, shown)

    def _chat_for_reply(self, chat_id: str) -> Chat:
        """An idle chat whose model is the loaded one, or that has none yet."""
        chat, loaded = self.idle_chat(chat_id), self._host.model_id
        if chat.model is not None and loaded is not None and chat.model != loaded:
            raise OtherModelError(chat.model, loaded)
        return chat

    def _add_reply(self, chat: Chat, turn: Message) -> Message:
        store = self._shelves.of(chat.id)
        if chat.model is None and self._host.model_id is not None:
            store.update_chat(chat.id, model=self._host.model_id)
        return store.add_message(
            chat.id, "assistant", "", parent_id=turn.id, status="streaming", model=self._model_name()
        )

    def _model_name(self) -> str | None:
        engine = self._host.engine
        return engine.info.name if engine is not None else self._host.model_id

    def _start_reply(self, message: Message) -> Message:
        self._replies.start(message)
        return message

    def _as_known(self, message: Message) -> Message:
        """A stored reply as far as it has come, on disk or not."""
        return self.unsaved(message.chat_id).get(message.id, message)


def as_far_as(newer: Mapping[str, Message], message: Message) -> Message:
    """`message` with the text it has by now, and its own place among the versions."""
    known = newer.get(message.id)
    return message if known is None else replace(known, version=message.version, versions=message.versions)
