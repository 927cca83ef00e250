"""What the chat service hands to the page: plain data classes, safe to keep and to send, never changed in place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

Role = Literal["system", "user", "assistant"]
MessageStatus = Literal["complete", "streaming", "stopped", "failed"]
EndReason = Literal["stop", "length", "aborted", "error"]
WaitState = Literal["waiting", "loading", "reading"]

TEMPORARY = "tmp-"  # how the ids of chats begin that are never written to disk


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
    draft_tokens: int = 0  # guessed ahead and checked
    accepted_tokens: int = 0  # of those, the ones that were right
    speedup: float = 1.0  # estimate: how many times as fast as without guesses

    def after(self, earlier: ReplyStats) -> ReplyStats:
        """Of a reply that went on: tokens are those of all its parts, speed and ending the last one's."""
        return replace(
            self,
            first_token_s=earlier.first_token_s,
            prompt_tokens=earlier.prompt_tokens,
            cached_tokens=earlier.cached_tokens,
            completion_tokens=earlier.completion_tokens + self.completion_tokens,
            draft_tokens=earlier.draft_tokens + self.draft_tokens,
            accepted_tokens=earlier.accepted_tokens + self.accepted_tokens,
        )


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that came with a user's turn, as the text that the model reads. `type` is its media type."""

    name: str
    type: str
    tokens: int
    text: str


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat. `token_ids` are those of a reply as the engine made them (empty for other roles).

    It is number `version` of `versions` turns in this place of the chat, of which one is shown.
    """

    id: str
    chat_id: str
    role: Role
    content: str
    reasoning: str = ""
    status: MessageStatus = "complete"
    error: str | None = None  # one sentence, if status is "failed", or "stopped" by something else than the user
    stats: ReplyStats | None = None
    created_s: float = 0.0  # seconds since the epoch
    token_ids: tuple[int, ...] = ()
    parent_id: str | None = None  # the turn it follows; None: the first of its chat
    model: str | None = None  # of a reply: the name of the model that wrote it
    attachments: tuple[Attachment, ...] = ()
    error_code: str | None = None  # names the error for the page's own words
    version: int = 1
    versions: int = 1


@dataclass(frozen=True, slots=True)
class ChatSummary:
    """One line of the list of chats."""

    id: str
    title: str
    updated_s: float
    generating: bool = False
    pinned: bool = False
    folder: str = ""  # empty: none
    tags: tuple[str, ...] = ()
    model: str | None = None  # the one that writes here

    @property
    def temporary(self) -> bool:
        """It is in memory only and gone when the server ends."""
        return self.id.startswith(TEMPORARY)


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat with the turns of the branch that is shown, oldest first."""

    id: str
    title: str
    created_s: float
    messages: tuple[Message, ...] = ()
    updated_s: float = 0.0
    pinned: bool = False
    folder: str = ""
    tags: tuple[str, ...] = ()
    model: str | None = None
    system: str = ""

    @property
    def temporary(self) -> bool:
        return self.id.startswith(TEMPORARY)


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """What a chat has of its own; what is not named follows the settings and the model.

    `preset` is the id of the preset that was chosen last. `options` is for whatever else a chat may decide.
    """

    system: str = ""
    preset: str | None = None
    sampling: Mapping[str, object] = field(default_factory=dict)
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Preset:
    """A system text and sampling values under a name."""

    id: str
    name: str
    system: str = ""
    sampling: Mapping[str, object] = field(default_factory=dict)


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
class Remark:
    """Something to say to the user: in English, and where there is a `code`, in the page's words `said.<code>`."""

    text: str
    code: str = ""
    values: Mapping[str, int | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the user should know about the reply, such as turns left out."""

    message_id: str
    remark: Remark

    @property
    def text(self) -> str:
        return self.remark.text


@dataclass(frozen=True, slots=True)
class UserTurn:
    """A turn of the user was stored."""

    message: Message


@dataclass(frozen=True, slots=True)
class Ended:
    """The reply is over, for whatever reason; the message as stored."""

    message: Message


@dataclass(frozen=True, slots=True)
class Shown:
    """Another branch of the chat is shown now: all its turns."""

    messages: tuple[Message, ...]


LiveEvent: TypeAlias = Snapshot | UserTurn | Progress | Notice | Append | Ended | Shown


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
