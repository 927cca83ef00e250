"""The door to all chats: stores turns, runs replies that outlive the tabs they were asked from, tells who watches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from octavo.app.chat.cuts import Cut
from octavo.app.chat.errors import ChatError, UnknownChatError
from octavo.app.chat.live import Subscription
from octavo.app.chat.news import News
from octavo.app.chat.patience import patiently, patiently_aside
from octavo.app.chat.replies import Replies
from octavo.app.chat.sampling import ANY_VOCABULARY, sampling_params
from octavo.app.chat.shelves import Shelves
from octavo.app.chat.store import ChatStore, StoreBusyError, StoreError
from octavo.app.chat.store_records import ChatRecord, Put
from octavo.app.chat.store_removal import Removed
from octavo.app.chat.store_rows import new_id
from octavo.app.chat.store_search import SearchHit
from octavo.app.chat.titles import make_title, title_of_copy
from octavo.app.chat.turns import Turns, as_far_as
from octavo.app.chat.types import (
    TEMPORARY,
    Attachment,
    Chat,
    ChatList,
    ChatSettings,
    ChatSummary,
    Ended,
    ListEvent,
    LiveEvent,
    Message,
    Shown,
)
from octavo.app.host import ModelHost
from octavo.app.text import without_halves

if TYPE_CHECKING:
    from octavo.app.config import Settings

log = logging.getLogger(__name__)

UNDO_S = 120.0  # so long a deleted chat or turn can be brought back; then it is erased


class ChatService:
    """Chats for any number of tabs.

    One reply a chat at a time: what begins one raises ChatBusyError while one runs. Replies run on the event loop that
    called `start` and end only by themselves, by `stop` or with the server. What is async and the subscriptions belong
    to that loop; all other methods may be called from any thread.
    """

    def __init__(self, store: ChatStore, host: ModelHost, settings: Settings) -> None:
        self.store = store
        self.host = host
        self.settings = settings
        self._shelves = Shelves(store)
        self._news = News(self._summary)
        self._replies = Replies(self._shelves, host, settings, self._news)
        self._taking_in = asyncio.Lock()
        self._turns = Turns(self._shelves, host, self._replies, self._news, self._taking_in)
        self._purging: asyncio.Task[None] | None = None
        self._closing = False

    async def start(self, cut: Cut = "interrupted") -> None:
        """Take over the running loop and close what a dead process left open; `cut` is why it is dead."""
        self._news.bind()
        await patiently(lambda: self.store.close_open_replies(cut))
        self._purge_later()

    async def close(self, cut: Cut = "closed") -> None:
        """Stop all replies, keeping what they have and why they end, and end all subscriptions."""
        self._closing = True
        self._turns.close()
        await self._replies.close(cut)
        if self._purging is not None:
            await asyncio.wait([self._purging])
        self._news.close()
        self._shelves.close()

    def store_of(self, chat_id: str) -> ChatStore:
        """Where the chat is: in the file, or in memory."""
        return self._shelves.of(chat_id)

    # Chats

    def list_chats(self) -> list[ChatSummary]:
        """Every chat, the last used first."""
        return [replace(chat, generating=chat.id in self._replies) for chat in self._shelves.list_chats()]

    def search(self, wanted: str) -> list[SearchHit]:
        """Chats whose title or turns have all words of `wanted`, the last used first."""
        return self._shelves.search(without_halves(wanted))

    def create_chat(self, system: str | None = None, *, temporary: bool = False) -> Chat:
        """An empty chat. A temporary one is never written to disk and ends with the server, or by `delete_chat`."""
        chat = self._shelves.create(without_halves(system) if system else None, temporary=temporary)
        self._news.changed(chat.id)
        return chat

    def get_chat(self, chat_id: str) -> Chat | None:
        """The chat's shown branch; a reply that is being written is shown as far as it is."""
        return self._turns.chat(chat_id)

    def chat_begun_by(self, nonce: str) -> str | None:
        """The lasting chat of which the turn sent under `nonce` is the first, if it was stored."""
        return self.store.chat_begun_by(nonce)

    def update_chat(
        self,
        chat_id: str,
        *,
        title: str | None = None,
        pinned: bool | None = None,
        folder: str | None = None,
        tags: Sequence[str] | None = None,
    ) -> bool:
        """Change what the list says about a chat; None leaves as it is. False if there is no such chat."""
        changed = self.store_of(chat_id).update_chat(
            chat_id,
            title=None if title is None else make_title(title),
            pinned=pinned,
            folder=None if folder is None else make_title(folder),
            tags=None if tags is None else [tag for tag in map(make_title, tags) if tag],
        )
        if changed:
            self._news.changed(chat_id)
        return changed

    def delete_chat(self, chat_id: str) -> bool:
        """Take a chat away, for good after UNDO_S; a reply that runs in it is stopped."""
        self.stop(chat_id)
        deleted = self.store_of(chat_id).delete_chat(chat_id)
        if deleted:
            self._news.removed(chat_id)
            self._news.on_loop(self._purge_later)
        return deleted

    def restore_chat(self, chat_id: str) -> bool:
        """Undo `delete_chat`; False if it is too late."""
        restored = self.store_of(chat_id).restore_chat(chat_id)
        if restored:
            self._news.changed(chat_id)
        return restored

    def keep_chat(self, chat_id: str) -> Chat:
        """Make a lasting chat of a temporary one. It gets a new id; the old one is gone."""
        self._turns.idle_chat(chat_id)
        chat = self._shelves.keep(chat_id)
        if chat is None:
            raise UnknownChatError
        self._news.changed(chat.id)
        self._news.removed(chat_id)
        return chat

    def branch_chat(self, chat_id: str, message_id: str) -> Chat:
        """A new chat that begins as this one does, up to the message."""
        store = self.store_of(chat_id)
        chat, settings, messages = store.get_chat(chat_id), store.get_chat_settings(chat_id), store.branch(message_id)
        if chat is None or settings is None or not messages or messages[-1].chat_id != chat_id:
            raise UnknownChatError
        prefix = TEMPORARY if chat.temporary else ""
        unsaved = self._turns.unsaved(chat_id)
        taken = {other.title for other in self.list_chats()}
        copy = replace(chat, id=prefix + new_id(), title=title_of_copy(chat.title, taken), updated_s=0.0, pinned=False)
        turns = [as_far_as(unsaved, message) for message in messages]
        newest = [m.id for m in messages if m.role == "assistant" and m.id not in unsaved][-2:]
        sequences = {reply: store.sequence(reply) for reply in newest}
        put = store.put(ChatRecord(replace(copy, messages=()), settings, tuple(turns)), sequences=sequences)
        self._news.changed(put.chat_id)
        return copy

    async def put(self, record: ChatRecord) -> Put:
        """Add a chat as a whole, or what the chat of its id lacks. Who looks at it sees it.

        However long it is, neither the loop nor other chats wait for it; a second record waits for the first.
        """
        async with self._taking_in:
            intake = self.store.intake(record)
            try:
                while (put := await patiently_aside(intake.step)) is None:
                    pass
            except BaseException:
                with suppress(StoreError):
                    await asyncio.to_thread(intake.abandon)
                raise
        self._news.changed(put.chat_id)
        if not put.created and put.turns:
            self._turns.tell_shown(put.chat_id)
        return put

    def sampling(self, chat_id: str) -> dict[str, object]:
        """The chat's own sampling values (those not named follow the settings and the model)."""
        settings = self.store_of(chat_id).get_chat_settings(chat_id)
        return {} if settings is None else dict(settings.sampling)

    def set_sampling(self, chat_id: str, values: Mapping[str, object]) -> None:
        """Replace the chat's own sampling values, from its next reply on. Raises RequestError naming a wrong one."""
        settings = self.store_of(chat_id).get_chat_settings(chat_id)
        if settings is None:
            raise UnknownChatError
        self.set_chat_settings(chat_id, replace(settings, sampling=values))

    def set_chat_settings(self, chat_id: str, settings: ChatSettings) -> None:
        """Replace what the chat has of its own. Raises RequestError naming a wrong sampling value."""
        engine = self.host.engine
        sampling_params(settings.sampling, vocab_size=ANY_VOCABULARY if engine is None else engine.info.vocab_size)
        if not self.store_of(chat_id).set_chat_settings(chat_id, settings):
            raise UnknownChatError

    # Replies

    async def send(
        self,
        chat_id: str,
        text: str,
        *,
        after: str | None = None,
        beside: str | None = None,
        nonce: str | None = None,
        attachments: Sequence[Attachment] = (),
    ) -> Message:
        """Store the user's turn and start the reply to it; returns the reply, still empty and streaming.

        `after` is the newest turn the sender has seen: StaleChatError if there are newer ones. `beside` names a turn of
        the user of which this is another version; what follows the first one stays with it. `nonce` names this very
        sending: a second one of the same name (double click, retry after a lost answer) returns the reply to the first.
        """
        self._news.bind()
        text = without_halves(text)
        if not text.strip() and not attachments:
            raise ChatError("The message is empty.", remedy="Write something first.", code="empty")
        return await patiently(lambda: self._turns.send(chat_id, text, after, beside, nonce, attachments))

    async def regenerate(self, chat_id: str, message_id: str | None = None) -> Message:
        """Write another reply beside `message_id` (None: to the chat's last user turn); earlier ones are kept."""
        self._news.bind()
        return await patiently(lambda: self._turns.regenerate(chat_id, message_id))

    async def continue_reply(self, chat_id: str) -> Message:
        """Go on with the chat's last reply, exactly after its text."""
        self._news.bind()
        return await patiently(lambda: self._turns.continue_reply(chat_id))

    async def edit_reply(self, chat_id: str, message_id: str, text: str) -> Message:
        """Add a version of a reply with another text, written by the user."""
        self._news.bind()
        text = without_halves(text)
        if not text.strip():
            raise ChatError("The message is empty.", remedy="Write something first.", code="empty")
        return await patiently(lambda: self._turns.edit_reply(chat_id, message_id, text))

    def show_version(self, chat_id: str, message_id: str, step: int = 0) -> None:
        """Show the version of a turn `step` places after `message_id`, and what was shown after it last."""
        self._turns.show_version(chat_id, message_id, step)

    def remove_turn(self, chat_id: str, message_id: str) -> Removed:
        """Take a turn out of a chat: a message of the user with its replies, a reply alone. What follows stays.

        For UNDO_S `put_back` undoes it, until another turn of the chat is removed.
        """
        removed = self._turns.remove(chat_id, message_id)
        self._news.on_loop(lambda: self._news.later(UNDO_S, partial(self._forget, removed)))
        return removed

    def put_back(self, chat_id: str, message_id: str) -> None:
        """Undo `remove_turn`. Raises ChatError if it is too late."""
        self._turns.put_back(chat_id, message_id)

    def use_model(self, chat_id: str) -> None:
        """Let the loaded model (or the one that is being loaded) write in this chat from now on."""
        if self.host.model_id is not None and self.store_of(chat_id).update_chat(chat_id, model=self.host.model_id):
            self._news.changed(chat_id)

    def stop(self, chat_id: str) -> bool:
        """End the chat's running reply, keeping what it has; False if none runs."""
        return self._replies.stop(chat_id)

    def requests(self) -> dict[str, str]:
        """The engine's requests of the replies that are being written, each with its chat."""
        return self._replies.requests()

    def running(self, chat_id: str) -> Message | None:
        """The chat's reply so far, if one is being written."""
        return self._replies.running(chat_id)

    # Watching

    def subscribe(self, chat_id: str) -> Subscription[LiveEvent]:
        """What happens in a chat from now on. While a reply runs the first event is its Snapshot."""
        self._news.bind()
        return self._news.chat(chat_id).subscribe(lambda missed: self._opening(chat_id, missed))

    def subscribe_list(self) -> Subscription[ListEvent]:
        """The list of chats, then every change of it."""
        self._news.bind()
        return self._news.list.subscribe(lambda _: [ChatList(tuple(self.list_chats()))])

    # Inside

    def _forget(self, removed: Removed) -> None:
        self._turns.forget(removed)
        self._purge()

    def _purge_later(self) -> None:
        self._news.later(UNDO_S, self._purge)

    def _purge(self) -> None:
        if not self._closing:
            self._purging = asyncio.create_task(self._erase_deleted(), name="erase-chats")

    async def _erase_deleted(self) -> None:
        try:
            await asyncio.to_thread(self._shelves.purge_deleted, UNDO_S)
        except StoreBusyError:
            self._purge_later()
        except StoreError:
            log.exception("Deleted chats could not be erased")

    def _opening(self, chat_id: str, missed: LiveEvent | None) -> list[LiveEvent]:
        events = self._replies.opening(chat_id)
        if missed is None:
            return events
        chat = self.get_chat(chat_id)
        if chat is None:
            return [missed]
        return [Shown(chat.messages), *events[1:], *([missed] if isinstance(missed, Ended) else [])]

    def _summary(self, chat_id: str) -> ChatSummary | None:
        chat = self.store_of(chat_id).summary(chat_id)
        return None if chat is None else replace(chat, generating=chat_id in self._replies)
