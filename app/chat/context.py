"""A chat's next prompt, fitted to the model's window. Knows which turns go; how they are written is the template's.

The rule where a chat has outgrown the window: the oldest turns go first, in steps of a quarter of the window, so that
the beginning of the prompt (and what is computed for it) stays the same for many turns before it changes again. The
system text and the newest turn always stay. A chat may instead be set to stop there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from octavo.app.chat.attachments.prompt import with_attachments
from octavo.app.chat.errors import ChatError
from octavo.app.chat.types import Message, Remark
from octavo.engine.errors import ContextOverflowError

if TYPE_CHECKING:
    from octavo.engine.engine import Engine
    from octavo.engine.text.reasoning import ReasoningFormat
    from octavo.engine.text.template import ChatTemplate, RenderedPrompt

Overflow = Literal["drop", "stop"]
Sequencer = Callable[[str], tuple[int, ...]]  # id of a reply -> ids of its prompt and itself

STEPS = 4  # turns are left out by this share of the window at a time
REPLY_SHARE = 8  # a prompt with more than one turn leaves this share of the window to the reply
TURN_OVERHEAD = 8  # tokens a template spends around one message, about
KNOWN_REPLIES = 2  # so many newest replies are tried as the prompt's beginning: the last one may have been regenerated


class ContextFullError(ChatError):
    """The chat has reached the end of the model's window and is set to stop there."""

    def __init__(self, tokens: int, window: int) -> None:
        super().__init__(
            f"This chat would have {tokens:,} tokens; the model's context holds {window:,}, and the chat is set to stop"
            " there.",
            remedy="Let its oldest turns be left out, or load the model with a larger context.",
            code="context_full",
        )
        self.tokens = tokens
        self.window = window


@dataclass(frozen=True, slots=True)
class Prompt:
    """What goes to the engine for one reply. `base_id` names the earlier reply whose ids it most likely continues."""

    ids: tuple[int, ...]
    left_out_turns: int = 0
    remarks: tuple[Remark, ...] = ()
    base_id: str | None = None
    reasoning: ReasoningFormat | None = None
    reasoning_open: bool = False


def build_prompt(
    engine: Engine,
    turns: Sequence[Message],
    *,
    sequence: Sequencer,
    max_tokens: int | None,
    continue_final: bool = False,
    overflow: Overflow = "drop",
) -> Prompt:
    """The prompt for a reply to `turns` (system texts, then user and assistant in turn, the newest a user's).

    `continue_final`: the newest is a reply, to be gone on with exactly after its text.

    Raises ContextOverflowError if the newest turn alone is too long, ContextFullError if turns would go that `overflow`
    keeps, RequestError if the template refuses the chat.
    """
    template = engine.template
    replies = [turn.id for turn in turns if turn.role == "assistant"][: -KNOWN_REPLIES - 1 : -1]
    known = {reply: ids for reply in replies if (ids := sequence(reply))}
    window = engine.context_length
    fitted = fit(
        template,
        turns,
        window=window,
        max_tokens=max_tokens,
        known=list(known.values()),
        continue_final=continue_final,
        overflow=overflow,
    )
    remarks = []
    if fitted.left_out_turns:
        count = fitted.left_out_turns
        remarks.append(Remark(left_out_notice(count, window), "left_out", {"n": count, "window": window}))
    if not replies:  # said once a chat
        remarks += [Remark(text) for text in fitted.rendered.notices]
    return Prompt(
        ids=fitted.rendered.ids,
        left_out_turns=fitted.left_out_turns,
        remarks=tuple(remarks),
        base_id=next(iter(known), None),
        reasoning=template.reasoning,
        reasoning_open=fitted.rendered.reasoning_open,
    )


@dataclass(frozen=True, slots=True)
class Fitted:
    """A rendered chat without its first `left_out_turns` turns."""

    rendered: RenderedPrompt
    left_out_turns: int


def fit(
    template: ChatTemplate,
    turns: Sequence[Message],
    *,
    window: int,
    max_tokens: int | None = None,
    known: Iterable[Sequence[int]] = (),
    continue_final: bool = False,
    overflow: Overflow = "drop",
) -> Fitted:
    """Render `turns`, leaving out the oldest by the rule above where they do not fit `window` tokens."""
    system, groups = _groups(turns, keep_last=continue_final)
    known = list(known)
    most = window - room_for_reply(window, max_tokens)

    def render(left_out: int) -> RenderedPrompt:
        kept = [*system, *(message for group in groups[left_out:] for message in group)]
        return template.render([as_sent(message) for message in kept], known=known, continue_final=continue_final)

    rendered = render(0)
    left_out = 0
    if len(rendered.ids) > most and len(groups) > 1:
        if overflow == "stop":
            raise ContextFullError(len(rendered.ids), window)
        sizes = [sum(message_tokens(template, message) for message in group) for group in groups]
        for left_out in cuts(sizes, len(rendered.ids) - most, window):
            rendered = render(left_out)
            if len(rendered.ids) <= most:
                break
    if len(rendered.ids) >= window:
        raise ContextOverflowError(len(rendered.ids), window)
    return Fitted(rendered, left_out)


def room_for_reply(window: int, max_tokens: int | None) -> int:
    """Tokens of the window that a prompt of more than one turn leaves free."""
    return max(1, min(max_tokens or window, window // REPLY_SHARE))


def cuts(sizes: Sequence[int], over: int, window: int) -> Iterator[int]:
    """How many of the first turns to leave out where `over` tokens do not fit: the smallest number by the rule above,
    then the next ones, up to all but the newest. `sizes` are the turns' tokens."""
    step = max(1, window // STEPS)
    goal = -(-over // step) * step
    left_out = -1
    while left_out < len(sizes) - 1:
        more = _turns_of_size(sizes, goal)
        if more > left_out:
            left_out = more
            yield left_out
        goal += step


def turn_groups(turns: Sequence[Message]) -> list[list[Message]]:
    """The turns that go together: each a user's message with what follows it."""
    return _groups(turns, keep_last=False)[1]


def message_tokens(template: ChatTemplate, message: Message) -> int:
    """What a message takes of the window, about."""
    return len(template.tokenizer.encode(content_of(message))) + TURN_OVERHEAD


def content_of(message: Message) -> str:
    """A message's text as the model reads it, with its files."""
    return with_attachments(message.content, message.attachments)


def overflow_of(options: Mapping[str, object]) -> Overflow:
    """What a chat's options say about a full window."""
    return "stop" if options.get("overflow") == "stop" else "drop"


def left_out_notice(turns: int, window: int) -> str:
    """What the user is told about turns that were left out."""
    what = "The oldest turn of this chat was" if turns == 1 else f"The {turns} oldest turns of this chat were"
    return (
        f"{what} left out: together they exceed the model's context of {window:,} tokens"
        " (oldest first, a quarter of the context at a time)."
    )


def _groups(turns: Sequence[Message], *, keep_last: bool) -> tuple[list[Message], list[list[Message]]]:
    """The system texts, and turns: each a user's message with what follows it. `keep_last`: even without a text."""
    system: list[Message] = []
    groups: list[list[Message]] = []
    for message in turns:
        if message.role == "assistant" and not message.content and not (keep_last and message is turns[-1]):
            continue  # failed or stopped before its first word
        if message.role == "system":
            system.append(message)
        elif message.role == "user" or not groups:
            groups.append([message])
        else:
            groups[-1].append(message)
    return system, groups


def as_sent(message: Message) -> dict[str, str]:
    """A message as the template takes it."""
    plain: dict[str, str] = {"role": message.role, "content": content_of(message)}
    if message.reasoning:
        plain["reasoning"] = message.reasoning
    return plain


def _turns_of_size(sizes: Sequence[int], goal: int) -> int:
    """How many of the first turns have `goal` tokens together; never the last one."""
    total = 0
    for count, size in enumerate(sizes[:-1], start=1):
        total += size
        if total >= goal:
            return count
    return max(0, len(sizes) - 1)
