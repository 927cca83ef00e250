"""The door to all chats: stores turns, runs replies that outlive the tabs they were asked from, tells who watches."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from octavo.app.chat.context import Prompt, build_prompt
from octavo.app.chat.endings import Endings
from octavo.app.chat.errors import ChatBusyError, ChatError, StaleChatError, UnknownChatError
from octavo.app.chat.live import Hub, Subscription
from octavo.app.chat.patience import patiently
from octavo.app.chat.reply import Reply
from octavo.app.chat.sampling import ANY_VOCABULARY, sampling_params
from octavo.app.chat.store import ChatStore, StoreBusyError, StoreError
from octavo.app.chat.types import (
    Chat,
    ChatChanged,
    ChatList,
    ChatRemoved,
    ChatSettings,
    ChatSummary,
    ListEvent,
    LiveEvent,
    Message,
    Notice,
    Remark,
    Snapshot,
    UserTurn,
)
from octavo.app.host import ModelHost
from octavo.app.text import without_halves
from octavo.engine.request import SamplingParams

if TYPE_CHECKING:
    from octavo.app.config import Settings
    from octavo.engine.engine import Engine

log = logging.getLogger(__name__)

TITLE_LENGTH = 60


class ChatService:
    """Chats for any number of tabs.

    One reply a chat at a time: `send` and `regenerate` raise ChatBusyError while one runs. Replies run on the event
    loop that called `start` and end only by themselves, by `stop` or with the server. `send`, `regenerate` and the
    subscriptions belong to that loop; all other methods may be called from any thread.
    """

    def __init__(self, store: ChatStore, host: ModelHost, settings: Settings) -> None:
        self.store = store
        self.host = host
        self.settings = settings
        self._replies: dict[str, Reply] = {}  # by chat
        self._hubs: dict[str, Hub[LiveEvent]] = {}  # by chat
        self._list_hub: Hub[ListEvent] = Hub()
        self._endings = Endings(store, self._publish_changed)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread: int | None = None
        self._closing = False

    async def start(self) -> None:
        """Take over the running loop and close what a dead process left open."""
        self._bind()
        await patiently(self.store.close_open_replies)

    async def close(self) -> None:
        """Stop all replies, keeping what they have, and end all subscriptions."""
        self._closing = True
        replies = list(self._replies.values())
        for reply in replies:
            reply.stop()
        for reply in replies:
            await reply.wait()
        await self._endings.close()
        for hub in self._hubs.values():
            hub.close()
        self._list_hub.close()

    # Chats

    def list_chats(self) -> list[ChatSummary]:
        """Every chat, the last used first."""
        return [replace(chat, generating=chat.id in self._replies) for chat in self.store.list_chats()]

    def create_chat(self, system: str | None = None) -> Chat:
        chat = self.store.create_chat(without_halves(system) if system else None)
        self._publish_changed(chat.id)
        return chat

    def get_chat(self, chat_id: str) -> Chat | None:
        """The chat's current branch; a reply that is being written is shown as far as it is."""
        ended = self._endings.waiting  # before reading too: one may be stored meanwhile
        chat = self.store.get_chat(chat_id)
        if chat is None:
            return None
        newer = {**ended, **self._endings.waiting}
        running = self.running(chat_id)
        if running is not None:
            newer[running.id] = running
        return replace(chat, messages=tuple(newer.get(message.id, message) for message in chat.messages))

    def rename_chat(self, chat_id: str, title: str) -> bool:
        renamed = self.store.update_chat(chat_id, title=make_title(title))
        if renamed:
            self._publish_changed(chat_id)
        return renamed

    def delete_chat(self, chat_id: str) -> bool:
        """Delete a chat with all its turns; a reply that runs in it is stopped."""
        self.stop(chat_id)
        deleted = self.store.delete_chat(chat_id)
        if deleted:
            self._on_loop(lambda: self._removed(chat_id))
        return deleted

    def sampling(self, chat_id: str) -> dict[str, object]:
        """The chat's own sampling values (those not named follow the settings and the model)."""
        settings = self.store.get_chat_settings(chat_id)
        return {} if settings is None else dict(settings.sampling)

    def set_sampling(self, chat_id: str, values: Mapping[str, object]) -> None:
        """Replace the chat's own sampling values, from its next reply on. Raises RequestError naming a wrong one."""
        engine = self.host.engine
        sampling_params(values, vocab_size=ANY_VOCABULARY if engine is None else engine.info.vocab_size)
        settings = self.store.get_chat_settings(chat_id)
        if settings is None or not self.store.set_chat_settings(chat_id, replace(settings, sampling=values)):
            raise UnknownChatError

    # Replies

    async def send(self, chat_id: str, text: str, *, after: str | None = None, nonce: str | None = None) -> Message:
        """Store the user's turn and start the reply to it; returns the reply, still empty and streaming.

        `after` is the newest turn the sender has seen: StaleChatError if there are newer ones. `nonce` names this very
        sending: a second one of the same name (double click, retry after a lost answer) returns the reply to the first.
        """
        self._bind()
        text = without_halves(text)
        if not text.strip():
            raise ChatError("The message is empty.", remedy="Write something first.")
        return await patiently(lambda: self._send(chat_id, text, after, nonce))

    async def regenerate(self, chat_id: str) -> Message:
        """Write another reply to the chat's last user turn; the earlier one is kept beside it, out of sight."""
        self._bind()
        return await patiently(lambda: self._regenerate(chat_id))

    def stop(self, chat_id: str) -> bool:
        """End the chat's running reply, keeping what it has; False if none runs."""
        reply = self._replies.get(chat_id)
        if reply is None:
            return False
        self._on_loop(reply.stop)
        return True

    def requests(self) -> dict[str, str]:
        """The engine's requests of the replies that are being written, each with its chat."""
        pairs = [(reply.request_id, chat_id) for chat_id, reply in tuple(self._replies.items())]
        return {request_id: chat_id for request_id, chat_id in pairs if request_id is not None}

    def running(self, chat_id: str) -> Message | None:
        """The chat's reply so far, if one is being written."""
        reply = self._replies.get(chat_id)
        return None if reply is None else reply.message

    # Watching

    def subscribe(self, chat_id: str) -> Subscription[LiveEvent]:
        """What happens in a chat from now on. While a reply runs the first event is its Snapshot."""
        self._bind()
        return self._hub(chat_id).subscribe(lambda missed: self._opening(chat_id, missed))

    def subscribe_list(self) -> Subscription[ListEvent]:
        """The list of chats, then every change of it."""
        self._bind()
        return self._list_hub.subscribe(lambda _: [ChatList(tuple(self.list_chats()))])

    # Inside

    def _idle_chat(self, chat_id: str) -> Chat:
        if self._closing:
            raise ChatError("Octavo is shutting down.")
        chat = self.store.get_chat(chat_id)
        if chat is None:
            raise UnknownChatError
        if chat_id in self._replies:
            raise ChatBusyError
        return chat

    def _send(self, chat_id: str, text: str, after: str | None, nonce: str | None) -> Message:
        """One try at `send`: stores the turn and the beginning of its reply, or nothing."""
        if nonce is not None:
            earlier = self.store.find_nonce(chat_id, nonce)
            replies = self.store.replies_to(earlier.id) if earlier else []
            if replies:
                return self._as_known(replies[-1])
        chat = self._idle_chat(chat_id)
        if after is not None and (not chat.messages or chat.messages[-1].id != after):
            raise StaleChatError
        with self.store.together():
            turn = self.store.add_message(chat_id, "user", text, nonce=nonce)
            if not chat.title:
                self.store.update_chat(chat_id, title=make_title(text))
            message = self._add_reply(chat_id, turn)
        self._hub(chat_id).publish(UserTurn(turn))
        return self._start_reply(message, turn)

    def _regenerate(self, chat_id: str) -> Message:
        chat = self._idle_chat(chat_id)
        turn = next((message for message in reversed(chat.messages) if message.role == "user"), None)
        if turn is None:
            raise ChatError("There is nothing to reply to yet.", remedy="Send a message first.")
        return self._start_reply(self._add_reply(chat_id, turn), turn)

    def _add_reply(self, chat_id: str, turn: Message) -> Message:
        engine = self.host.engine
        return self.store.add_message(
            chat_id,
            "assistant",
            "",
            parent_id=turn.id,
            status="streaming",
            model=engine.info.name if engine is not None else self.host.model_id,
        )

    def _start_reply(self, message: Message, turn: Message) -> Message:
        chat_id = message.chat_id
        reply = Reply(
            message,
            store=self.store,
            host=self.host,
            prepare=lambda engine: self._prepare(chat_id, turn.id, engine),
            publish=self._hub(chat_id).publish,
        )
        self._replies[chat_id] = reply
        self._hub(chat_id).publish(Snapshot(message))
        reply.start(on_end=self._ended)
        self._publish_changed(chat_id)
        return message

    def _prepare(self, chat_id: str, turn_id: str, engine: Engine) -> tuple[Prompt, SamplingParams]:
        """The reply's prompt and sampling values, by what the chat, the settings and the model say now."""
        settings = self.store.get_chat_settings(chat_id) or ChatSettings()
        params = sampling_params(
            {},
            chat=settings.sampling,
            settings=self.settings.values.sampling.model_dump(),
            model=engine.info.generation_defaults,
            vocab_size=engine.info.vocab_size,
        )
        params = replace(params, stop=(*params.stop, *engine.template.stop_strings))
        ended = self._endings.waiting
        turns = [ended.get(turn.id, turn) for turn in self.store.branch(turn_id)]
        if settings.system:
            turns.insert(0, Message(id="", chat_id=chat_id, role="system", content=settings.system))

        def sequence(message_id: str) -> tuple[int, ...]:  # of a reply that is not on disk yet, only the text is known
            return () if message_id in ended else self.store.sequence(message_id)

        return build_prompt(engine, turns, sequence=sequence, max_tokens=params.max_tokens), params

    def _ended(self, message: Message) -> None:
        chat_id = message.chat_id
        try:
            error = self._endings.add(message)
        finally:
            self._replies.pop(chat_id, None)
        if error is not None and not isinstance(error, StoreBusyError):  # a busy file is nothing to trouble anyone with
            self._hub(chat_id).publish(Notice(message.id, Remark(f"This reply is not saved yet. {error}", "unsaved")))
        self._publish_changed(chat_id)
        for idle in [idle for idle, hub in self._hubs.items() if not len(hub) and idle not in self._replies]:
            del self._hubs[idle]

    def _removed(self, chat_id: str) -> None:
        hub = self._hubs.pop(chat_id, None)
        if hub is not None:
            hub.close()
        self._list_hub.publish(ChatRemoved(chat_id))

    def _as_known(self, message: Message) -> Message:
        """A stored reply as far as it has come, on disk or not."""
        running = self.running(message.chat_id)
        if running is not None and running.id == message.id:
            return running
        return self._endings.waiting.get(message.id, message)

    def _opening(self, chat_id: str, missed: LiveEvent | None) -> list[LiveEvent]:
        reply = self._replies.get(chat_id)
        if reply is not None:
            return [Snapshot(reply.message), *reply.opening()]
        return [] if missed is None else [missed]

    def _hub(self, chat_id: str) -> Hub[LiveEvent]:
        return self._hubs.setdefault(chat_id, Hub())

    def _publish_changed(self, chat_id: str) -> None:
        def publish() -> None:
            try:
                chat = self.store.summary(chat_id)
            except StoreError:  # what happened in the chat has happened, though the list cannot show it
                log.exception("A chat's line in the list could not be read")
                return
            if chat is not None:
                self._list_hub.publish(ChatChanged(replace(chat, generating=chat_id in self._replies)))

        self._on_loop(publish)

    def _bind(self) -> None:
        if self._loop is None:
            self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()

    def _on_loop(self, action: Callable[[], None]) -> None:
        if self._loop is None or threading.get_ident() == self._loop_thread:
            action()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(action)


def make_title(text: str) -> str:
    """A chat's title: the text on one line, cut between words."""
    line = " ".join(without_halves(text).split())
    if len(line) <= TITLE_LENGTH:
        return line
    cut = line[:TITLE_LENGTH]
    return (cut.rsplit(" ", 1)[0] if " " in cut else cut).rstrip(",;:.") + "…"
