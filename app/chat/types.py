"""What the chat service hands to the page: plain data classes, safe to keep and to send, never changed in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Role = Literal["system", "user", "assistant"]
MessageStatus = Literal["complete", "streaming", "stopped", "failed"]
EndReason = Literal["stop", "length", "aborted", "error"]
WaitState = Literal["waiting", "loading", "reading"]


@dataclass(frozen=True, slots=True)
class ReplyStats:
    """The line of figures under a reply. `reason` is why it ended, `stopped_by` the stop string or end token if any."""

    decode_tok_s: float
    first_token_s: float  # from handing it to the engine to the first token, its waiting included
    prompt_tokens: int
    cached_tokens: int  # of the prompt tokens, how many were not computed again
    completion_tokens: int
    reason: EndReason
    stopped_by: str | None = None
    left_out_turns: int = 0  # oldest turns that did not fit the window


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat. `token_ids` are those of a reply as the engine made them (empty for other roles)."""

    id: str
    chat_id: str
    role: Role
    content: str
    reasoning: str = ""
    status: MessageStatus = "complete"
    error: str | None = None  # one sentence, if status is "failed"
    stats: ReplyStats | None = None
    created_s: float = 0.0  # seconds since the epoch
    token_ids: tuple[int, ...] = ()
    parent_id: str | None = None  # the turn it follows; None: the first of its chat
    model: str | None = None  # of a reply: the name of the model that wrote it


@dataclass(frozen=True, slots=True)
class ChatSummary:
    """One line of the list of chats."""

    id: str
    title: str
    updated_s: float
    generating: bool = False


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat with the turns of its current branch, oldest first."""

    id: str
    title: str
    created_s: float
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """First event of a subscription while a reply runs: all of it so far."""

    message: Message


@dataclass(frozen=True, slots=True)
class Append:
    """New text of the running reply, to be added at the end."""

    message_id: str
    text: str = ""
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a reply without text yet is waiting for.

    waiting: for a turn, `place` requests are before it; loading: the model, `done` of `total` bytes (0: unknown);
    reading: the prompt, `done` of `total` tokens, of which `cached` were there before.
    """

    message_id: str
    state: WaitState
    done: int = 0
    total: int = 0
    cached: int = 0
    place: int = 0


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the user should know about the reply, such as turns left out."""

    message_id: str
    text: str


@dataclass(frozen=True, slots=True)
class UserTurn:
    """A turn of the user was stored."""

    message: Message


@dataclass(frozen=True, slots=True)
class Ended:
    """The reply is over, for whatever reason; the message as stored."""

    message: Message


LiveEvent: TypeAlias = Snapshot | UserTurn | Progress | Notice | Append | Ended


@dataclass(frozen=True, slots=True)
class ChatList:
    """First event of a list subscription: every chat, the last used first."""

    chats: tuple[ChatSummary, ...]


@dataclass(frozen=True, slots=True)
class ChatChanged:
    """A chat is new, was renamed, got a turn, or began or ended generating."""

    chat: ChatSummary


@dataclass(frozen=True, slots=True)
class ChatRemoved:
    """A chat was deleted."""

    chat_id: str


ListEvent: TypeAlias = ChatList | ChatChanged | ChatRemoved
