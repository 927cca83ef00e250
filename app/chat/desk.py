"""What lies beside a message while it is written: its files, and what sending it would do to the window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from octavo.app.chat.attachments import ReadFile, Tray, read_file
from octavo.app.chat.attachments.types import MEDIA_TYPES
from octavo.app.chat.context import ContextFullError, overflow_of
from octavo.app.chat.errors import ChatError, UnknownChatError
from octavo.app.chat.gauge import ContextGauge, Reading, count_tokens
from octavo.app.chat.types import Attachment, ChatSettings, Message

if TYPE_CHECKING:
    from octavo.app.chat.service import ChatService


class MessageTooLongError(ChatError):
    """A message that does not fit into the model's window even alone."""

    def __init__(self, tokens: int, window: int) -> None:
        super().__init__(
            f"With this message the prompt has {tokens:,} tokens; the model's context holds {window:,}.",
            remedy="Shorten it, take a file away, or load the model with a larger context.",
            code="too_long",
        )
        self.values = {"used": tokens, "limit": window}


@dataclass(frozen=True, slots=True)
class Laid:
    """A file on the desk. `tokens` is None while no model is loaded."""

    id: str
    file: ReadFile
    tokens: int | None


class Desk:
    """One for the server. All methods may be called from any thread and take their time: not on the event loop."""

    def __init__(self, service: ChatService) -> None:
        self._service = service
        self._tray = Tray()
        self._gauge = ContextGauge()

    def add(self, name: str, data: bytes) -> Laid:
        """Read a file and keep it until it is sent. Raises AttachmentError."""
        file = read_file(name, data)
        return self._laid(self._tray.put(file), file)

    def file(self, file_id: str) -> Laid | None:
        """A file of a message that is still being written; None if it is not there any more."""
        file = self._tray.get(file_id)
        return None if file is None else self._laid(file_id, file)

    def take_away(self, file_ids: Sequence[str]) -> None:
        """Files that were sent, or are not to be."""
        self._tray.drop(file_ids)

    def attachments(self, file_ids: Sequence[str]) -> tuple[Attachment, ...]:
        """The files as they are sent. They stay until `take_away`. Raises AttachmentError."""
        files = self._tray.take(file_ids)
        return tuple(
            Attachment(file.name, MEDIA_TYPES[file.kind], self._tokens(file) or 0, file.text) for file in files
        )

    def measure(
        self,
        chat_id: str | None,
        text: str,
        attachments: Sequence[Attachment] = (),
        *,
        beside: str | None = None,
        settings: ChatSettings | None = None,
    ) -> Reading | None:
        """The window with this message at the chat's end, or as another version of its turn `beside`.

        Where the chat is set to stop, `used` is all that it holds, though `left_out` turns would have to go.
        `settings` are those of a chat that is still to be made. None while no model is loaded. Raises UnknownChatError.
        """
        engine = self._service.host.engine
        if engine is None:
            return None
        own = self._settings(chat_id, settings)
        turns = self._turns(chat_id, beside)
        if own.system:
            turns.insert(0, Message(id="", chat_id=chat_id or "", role="system", content=own.system))
        most = own.sampling.get("max_tokens") or self._service.settings.values.sampling.max_tokens
        max_tokens = most if isinstance(most, int) else None
        reading = self._gauge.measure(engine, turns, text, attachments=attachments, max_tokens=max_tokens)
        if overflow_of(own.options) == "stop":  # nothing will be left out: the window has to hold all of it
            return replace(reading, used=reading.before + reading.draft)
        return reading

    def ready(
        self, chat_id: str, text: str, file_ids: Sequence[str], *, beside: str | None = None, nonce: str | None = None
    ) -> tuple[Attachment, ...]:
        """The files of a message that is about to be stored, if it can be answered as the chat wants it.

        Another version of the turn `beside` keeps that one's files. A sending whose `nonce` was stored before is not
        looked at again. Raises AttachmentError, MessageTooLongError, ContextFullError, UnknownChatError.
        """
        store = self._service.store_of(chat_id)
        if nonce is not None and store.find_nonce(chat_id, nonce) is not None:
            return ()
        earlier = store.get_message(beside) if beside is not None else None
        attachments = (*(earlier.attachments if earlier is not None else ()), *self.attachments(file_ids))
        reading = self.measure(chat_id, text, attachments, beside=beside)
        if reading is not None and reading.too_long:
            raise MessageTooLongError(reading.used, reading.limit)
        if reading is not None and reading.left_out and overflow_of(self._settings(chat_id, None).options) == "stop":
            raise ContextFullError(reading.before + reading.draft, reading.limit)
        return attachments

    def _settings(self, chat_id: str | None, settings: ChatSettings | None) -> ChatSettings:
        if chat_id is None:
            return settings or ChatSettings()
        stored = self._service.store_of(chat_id).get_chat_settings(chat_id)
        if stored is None:
            raise UnknownChatError
        return stored

    def _turns(self, chat_id: str | None, beside: str | None) -> list[Message]:
        if chat_id is None:
            return []
        chat = self._service.get_chat(chat_id)
        if chat is None:
            raise UnknownChatError
        turns = list(chat.messages)
        ids = [turn.id for turn in turns]
        return turns[: ids.index(beside)] if beside in ids else turns

    def _laid(self, file_id: str, file: ReadFile) -> Laid:
        return Laid(file_id, file, self._tokens(file))

    def _tokens(self, file: ReadFile) -> int | None:
        engine = self._service.host.engine
        return None if engine is None else count_tokens(engine.tokenizer, file.text)
