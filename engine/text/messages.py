"""Chat messages as requests carry them, made into what templates take. Knows OpenAI's forms, no template."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.engine.errors import RequestError
from octavo.engine.text.reasoning import ReasoningFormat, split_reasoning
from octavo.engine.text.sandbox import plain

Turn = dict[str, Any]  # role, content: str, and where given reasoning: str, tool_calls, tool_call_id, name

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
_OTHER_KEYS = ("name", "tool_calls", "tool_call_id")


def read_messages(messages: Sequence[Mapping[str, Any]], reasoning: ReasoningFormat | None) -> list[Turn]:
    """Plain turns with text content. Reasoning that a client left in an assistant's content moves to `reasoning`.

    Raises RequestError naming the message's index for an empty list, an unknown role, or content that is not text.
    """
    if not messages:
        raise RequestError("The message list is empty.", field="messages", remedy="Send at least one user message.")
    return [_read_message(message, f"messages[{index}]", reasoning) for index, message in enumerate(messages)]


def fold_system(turns: Sequence[Turn]) -> list[Turn]:
    """Leading system texts go in front of the first user turn, or become one."""
    count = next((i for i, turn in enumerate(turns) if turn["role"] != "system"), len(turns))
    if count == 0:
        return list(turns)
    text = "\n\n".join(turn["content"] for turn in turns[:count])
    rest = list(turns[count:])
    for place, turn in enumerate(rest):
        if turn["role"] == "user":
            rest[place] = turn | {"content": f"{text}\n\n{turn['content']}"}
            return rest
    return [{"role": "user", "content": text}, *rest]


def late_system_as_user(turns: Sequence[Turn]) -> list[Turn]:
    """System turns after the first message are said by the user."""
    return [turn | {"role": "user"} if i and turn["role"] == "system" else turn for i, turn in enumerate(turns)]


def merge_turns(turns: Sequence[Turn]) -> list[Turn]:
    """Consecutive turns of one role become one, a blank line between them; turns with tool calls stay as they are."""
    merged: list[Turn] = []
    for turn in turns:
        last = merged[-1] if merged else None
        if last and last["role"] == turn["role"] and turn["role"] != "tool" and not {"tool_calls"} & {*last, *turn}:
            texts = [text for text in (last["content"], turn["content"]) if text]
            merged[-1] = last | turn | {"content": "\n\n".join(texts)}
        else:
            merged.append(turn)
    return merged


def _read_message(message: Mapping[str, Any], where: str, reasoning: ReasoningFormat | None) -> Turn:
    if not isinstance(message, Mapping):
        raise RequestError(
            f"{where} is not an object with role and content.",
            field="messages",
            remedy='Send it as {"role": "user", "content": "..."}.',
        )
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        shown = repr(role) if isinstance(role, str | None) else f"of type {type(role).__name__}"
        raise RequestError(
            f"{where} has the role {shown if len(shown) <= 60 else shown[:57] + '...'}.",
            field="messages",
            remedy=f"Roles are {', '.join(_ROLES)}.",
        )
    turn: Turn = {"role": _ROLES[role], "content": _read_content(message.get("content"), where)}
    for key in _OTHER_KEYS:
        if message.get(key) is not None:
            turn[key] = plain(message[key])
    if "tool_calls" in turn:
        turn["tool_calls"] = _read_tool_calls(turn["tool_calls"], where)
    if turn["role"] == "assistant":
        thought = next((message[key] for key in _REASONING_KEYS if isinstance(message.get(key), str)), "")
        if not thought:
            thought, turn["content"] = _split_first(turn["content"], reasoning)
        if thought:
            turn["reasoning"] = thought
    return turn


def _split_first(content: str, reasoning: ReasoningFormat | None) -> tuple[str, str]:
    if reasoning is None or not content.lstrip().startswith(reasoning.open):
        return "", content
    return split_reasoning(content, reasoning)


def _read_content(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise RequestError(
            f"{where}.content is neither a text nor a list of parts.", field="messages", remedy="Send it as a text."
        )
    texts = []
    for index, part in enumerate(content):
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind not in ("text", "input_text", "output_text", "refusal"):
            raise RequestError(
                f"{where}.content[{index}] is a part of type {kind!r}; only text can be read.",
                field="messages",
                remedy="Leave the part out or describe it in words.",
            )
        text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            raise RequestError(
                f"{where}.content[{index}] has no text.", field="messages", remedy="Put one in, or leave the part out."
            )
        texts.append(text)
    return "\n".join(texts)


def _read_tool_calls(calls: Any, where: str) -> list[Any]:
    """Arguments arrive as JSON in a string; templates write them with `tojson` and want the object."""
    if not isinstance(calls, list):
        raise RequestError(
            f"{where}.tool_calls is not a list.", field="messages", remedy="Send it as the reply had it."
        )
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RequestError(
                f"{where}.tool_calls[{index}] names no function.",
                field="messages",
                remedy="Send it as the reply had it.",
            )
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            with contextlib.suppress(ValueError, RecursionError):  # what the model wrote is then shown to it as it was
                function["arguments"] = json.loads(arguments) if arguments.strip() else {}
    return calls
