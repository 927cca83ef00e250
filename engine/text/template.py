"""From a chat to a prompt. Knows the model's chat template and what it refuses; the window is fitted elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.engine.errors import RequestError
from octavo.engine.text.fallback import choose_fallback
from octavo.engine.text.known import join_known
from octavo.engine.text.messages import Turn, fold_system, late_system_as_user, merge_turns, read_messages
from octavo.engine.text.reasoning import detect_reasoning, reasoning_left_open
from octavo.engine.text.sandbox import CompiledTemplate, TemplateFailure, plain
from octavo.engine.text.tokenizer import Segment, Tokenizer

# Noncharacters (Unicode, section 23.7) never occur in text; they mark what came from a message through the template.
_BEGIN, _END, _HERE = "\ufdd0", "\ufdd1", "\ufdd2"
_STRIP_MARKS = {ord(mark): None for mark in (_BEGIN, _END)}

_FOLDED = "This model's chat template has no place for the system text; it was put before the first user message."
_MERGED = "This model's chat template wants strict turns; consecutive messages of one role were merged."
_LATE_SYSTEM = "This model's chat template takes a system text only at the start; later ones were said as the user."
_NO_TOOLS = "This model's chat template takes no tools; they were left out."


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A prompt ready for `Engine.submit`. `text` is what the template wrote; `ids` may have a begin token before it.

    `reasoning_open`: the reply starts inside the reasoning. `reused`: so many ids were taken from stored ones.
    """

    text: str
    ids: tuple[int, ...]
    reasoning_open: bool = False
    notices: tuple[str, ...] = ()
    reused: int = 0


class ChatTemplate:
    """One model's chat template, or a stated replacement if it has none that works.

    What the template can do (a system role, tools, texts as strings or parts) is found out once, by trying.
    """

    def __init__(self, tokenizer: Tokenizer, source: str | None = None) -> None:
        """`source` goes before the tokenizer's own template, which alone says what else is a control token.

        `notices` say if another template than the model's had to be used.
        """
        self.tokenizer = tokenizer
        self.notices: tuple[str, ...] = ()
        self.stop_strings: tuple[str, ...] = ()  # to be used with every request, for want of an end-of-turn token
        wanted = source if source is not None else tokenizer.chat_template
        self.source, self._template = self._compile(wanted)
        self._tool_template = self._compile_tools(None if source is not None else tokenizer.templates.get("tool_use"))
        self.reasoning = detect_reasoning(self.source, tokenizer)
        self._keeps_reasoning = "reasoning" in self.source or "thinking" in self.source
        # A template may cut a text short: the mark in front alone is enough.
        self._marked = re.compile(f"{_BEGIN}({tokenizer.control_pattern.pattern}){_END}?|[{_BEGIN}{_END}]")
        self._as_parts = self._wants_parts()
        self.has_system_role = self._writes([_turn("system", "qsystemq"), _turn("user", "quserq")])
        self.takes_tools = self._tool_template is not None or "tools" in self.source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        extra: Mapping[str, Any] | None = None,
        known: Iterable[Sequence[int]] | None = None,
    ) -> RenderedPrompt:
        """The prompt for `messages` (OpenAI's form; an assistant's `reasoning` is used only if the template wants it).

        `continue_final`: the last message, an assistant's, is left open exactly after its text. `extra`: variables
        the template may know, such as `enable_thinking`. `known`: stored ids of earlier prompts with their replies.
        Raises RequestError naming the message that cannot be rendered.
        """
        turns = read_messages(messages, self.reasoning)
        notices = list(self.notices)
        variables: dict[str, Any] = dict(extra or {})
        if tools and self.takes_tools:
            variables["tools"] = list(tools)
        elif tools:
            notices.append(_NO_TOOLS)
        inside_reasoning = False
        if continue_final:
            marked, inside_reasoning = self._render_open(turns, variables, notices)
        else:
            marked = self._render(turns, add_generation_prompt, variables, notices)
        segments = list(self._segments(marked))
        text = "".join(part for part, _ in segments)
        ids: Sequence[int] = self.tokenizer.with_begin(self.tokenizer.encode_segments(segments))
        reused = 0
        if known is not None:
            joined = join_known(self.tokenizer, ids, known)
            ids, reused = joined.ids, joined.reused
        opened = inside_reasoning or (not continue_final and reasoning_left_open(marked, self.reasoning))
        return RenderedPrompt(text, tuple(ids), opened, tuple(notices), reused)

    # Which template

    def _compile(self, source: str | None) -> tuple[str, CompiledTemplate]:
        if source:
            try:
                return source, CompiledTemplate(source)
            except TemplateFailure as failure:
                reason = f"This model's chat template is not usable ({failure.message})"
        else:
            reason = "This model has no chat template"
        fallback = choose_fallback(self.tokenizer)
        self.notices = (f"{reason}; {fallback.description}.",)
        self.stop_strings = fallback.stop_strings
        return fallback.source, CompiledTemplate(fallback.source)

    def _compile_tools(self, source: str | None) -> CompiledTemplate | None:
        if not source:
            return None
        try:
            return CompiledTemplate(source)
        except TemplateFailure:
            return None

    # What it can do

    def _writes(self, turns: Sequence[Turn]) -> bool:
        """Whether the template takes these turns and every one's text is in what it writes."""
        try:
            text = self._run(turns, True, {})
        except TemplateFailure:
            return False
        return all(turn["content"] in text for turn in turns)

    def _wants_parts(self) -> bool:
        """Templates of models that also see images may loop over a message's parts and know no plain text."""
        self._as_parts = False
        turns = [_turn("user", "quserq")]
        if self._writes(turns):
            return False
        self._as_parts = True
        return self._writes(turns)

    # Rendering

    def _run(self, turns: Sequence[Turn], add_generation_prompt: bool, variables: Mapping[str, Any]) -> str:
        template = self._tool_template if self._tool_template and variables.get("tools") else self._template
        names = {"bos_token": "", "eos_token": "", "unk_token": "", "pad_token": ""} | self.tokenizer.special_tokens
        return template.render(
            {
                **names,
                "tools": None,
                "documents": None,
                **self._mark(plain(variables)),
                "messages": [self._message(turn) for turn in turns],
                "add_generation_prompt": add_generation_prompt,
            }
        )

    def _message(self, turn: Turn) -> dict[str, Any]:
        message = {key: self._mark(value) for key, value in turn.items() if key not in ("role", "reasoning")}
        message["role"] = turn["role"]
        if self._as_parts:
            message["content"] = [{"type": "text", "text": message["content"]}]
        if self._keeps_reasoning and turn.get("reasoning"):
            thought = self._mark(turn["reasoning"])
            message |= {"reasoning_content": thought, "reasoning": thought, "thinking": thought}
        return message

    def _mark(self, value: Any) -> Any:
        """Puts marks around whatever in a caller's text is spelled like a control token."""
        match value:
            case str():
                return self.tokenizer.control_pattern.sub(
                    lambda match: f"{_BEGIN}{match[0]}{_END}", value.translate(_STRIP_MARKS)
                )
            case dict():
                return {self._mark(key): self._mark(item) for key, item in value.items()}
            case list():
                return [self._mark(item) for item in value]
            case _:
                return value

    def _segments(self, marked: str) -> Iterator[Segment]:
        """Splits what the template wrote at the marks. A mark that stands alone still keeps its neighbours apart."""
        end = 0
        for match in self._marked.finditer(marked):
            yield marked[end : match.start()], True
            yield match[1] or "", False
            end = match.end()
        yield marked[end:], True

    def _render(
        self, turns: Sequence[Turn], add_generation_prompt: bool, variables: Mapping[str, Any], notices: list[str]
    ) -> str:
        """Renders the turns in the first form that the template takes without leaving a text out, and says which."""
        failure: TemplateFailure | None = None
        incomplete: tuple[str, tuple[str, ...]] | None = None
        for form, form_notices in self._forms(turns):
            try:
                marked = self._run(form, add_generation_prompt, variables)
            except TemplateFailure as error:
                failure = failure or error
                continue
            if self._has_every_text(marked, form):
                notices.extend(form_notices)
                return marked
            incomplete = incomplete or (marked, form_notices)
        if incomplete is not None:  # a template that rewrites texts rather than losing them
            notices.extend(incomplete[1])
            return incomplete[0]
        reason = failure.message if failure else "it writes nothing"
        index = self._index_of_refusal(turns, variables)
        raise RequestError(
            f"This model's chat template refuses messages[{index}] ({turns[index]['role']}): {reason.rstrip('.')}.",
            field="messages",
            remedy="Change that message or leave it out.",
        )

    def _has_every_text(self, marked: str, turns: Sequence[Turn]) -> bool:
        return all(
            self._mark(turn["content"].strip()) in marked for turn in turns if turn["role"] in ("system", "user")
        )

    def _forms(self, turns: Sequence[Turn]) -> Iterator[tuple[Sequence[Turn], tuple[str, ...]]]:
        notices: tuple[str, ...] = ()
        if not self.has_system_role and turns[0]["role"] == "system":
            turns, notices = fold_system(turns), (_FOLDED,)
        yield turns, notices
        merged = merge_turns(turns)
        if len(merged) < len(turns):
            yield merged, (*notices, _MERGED)
        if any(turn["role"] == "system" for turn in turns[1:]):
            yield merge_turns(late_system_as_user(merged)), (*notices, _LATE_SYSTEM)
        if turns[0]["role"] == "system":
            yield merge_turns(fold_system(turns)), (*notices, _FOLDED)

    def _index_of_refusal(self, turns: Sequence[Turn], variables: Mapping[str, Any]) -> int:
        """The message after the longest beginning of the chat that the template takes."""
        for count in range(len(turns) - 1, 0, -1):
            for form, _ in self._forms(turns[:count]):
                try:
                    self._run(form, False, variables)
                except TemplateFailure:
                    continue
                return count
        return 0

    def _render_open(self, turns: Sequence[Turn], variables: Mapping[str, Any], notices: list[str]) -> tuple[str, bool]:
        """(marked text that ends exactly with the last turn's text, whether that text is reasoning)."""
        last = turns[-1]
        if last["role"] != "assistant":
            raise RequestError(
                f"messages[{len(turns) - 1}] ({last['role']}) cannot be continued.",
                field="messages",
                remedy="Only a last message of the assistant can.",
            )
        content, thought = last["content"], last.get("reasoning", "")
        if not content and thought and self.reasoning is not None:
            marked = self._render_reply_start(turns, variables, notices)
            opening, close = self.reasoning.open, self.reasoning.close
            if marked.rstrip().endswith(close) and opening in marked:  # an empty reasoning, written for the model
                marked = marked[: marked.rindex(opening)]
            if not reasoning_left_open(marked, self.reasoning):
                marked += opening
            has_line_break = f"{opening}\n" in self.source or f"{opening}\\n" in self.source
            if has_line_break and marked.endswith(opening):
                marked += "\n"
            return marked + self._mark(thought), True
        # Templates trim texts and close turns, so a mark stands for the text and what comes after it is cut off.
        here = self._run_with_mark(turns, variables, notices)
        if here is None:
            here = self._render_reply_start(turns, variables, notices)
        return here + self._mark(content), False

    def _run_with_mark(self, turns: Sequence[Turn], variables: Mapping[str, Any], notices: list[str]) -> str | None:
        for form, form_notices in self._forms([*turns[:-1], turns[-1] | {"content": _HERE}]):
            try:
                marked = self._run(form, False, variables)
            except TemplateFailure:
                continue
            if _HERE in marked:
                notices.extend(form_notices)
                return marked[: marked.rindex(_HERE)]
        return None

    def _render_reply_start(self, turns: Sequence[Turn], variables: Mapping[str, Any], notices: list[str]) -> str:
        if len(turns) == 1:
            raise RequestError(
                "This model's chat template cannot continue messages[0] (assistant): no user message comes before it.",
                field="messages",
                remedy="Put one before it.",
            )
        return self._render(turns[:-1], True, variables, notices)


def _turn(role: str, content: str) -> Turn:
    return {"role": role, "content": content}
