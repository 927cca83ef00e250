"""What of a chat's messages reaches a template: roles, turns, parts, tools; what is refused, and by which name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from turns import assistant, system, user

from octavo.engine.errors import RequestError
from octavo.engine.text import ChatTemplate, Tokenizer

# Small templates with habits of their own; `mistral` and `gemma` want strict turns.
SYSTEM_FIRST_STYLE = """\
{%- for message in messages %}
{%- if message.role == 'system' and not loop.first %}{{- raise_exception('system must come first') }}{%- endif %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
DEAF_STYLE = """\
{%- for message in messages if message.role != 'system' %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
SELF_FOLDING_STYLE = """\
{%- set first = messages[0].content + '\\n' if messages[0].role == 'system' else '' %}
{%- for message in messages if message.role != 'system' %}
{{- '<|im_start|>' + message.role + '\\n' + (first if loop.first else '') + message.content + '<|im_end|>\\n' }}
{%- endfor %}"""
PARTS_STYLE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- for part in message.content %}{%- if part.type == 'text' %}{{- part.text }}{%- endif %}{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""


@pytest.fixture(params=["mistral", "gemma"])
def strict(request: pytest.FixtureRequest) -> ChatTemplate:
    return request.getfixturevalue(request.param)


# Roles and turns


@pytest.mark.parametrize("turns", [[system("S1"), user("U1"), user("U2")], [system("S1"), user("U1")]])
def test_system_text_and_repeated_roles_fit_templates_with_strict_turns(
    strict: ChatTemplate, turns: list[dict[str, Any]]
) -> None:
    prompt = strict.render(turns)
    said = [turn["content"] for turn in turns]
    assert "\n\n".join(said) in prompt.text
    assert any("system text" in notice for notice in prompt.notices)
    assert any("merged" in notice for notice in prompt.notices) == (len(turns) == 3)


def test_system_text_alone_becomes_the_user_turn(strict: ChatTemplate) -> None:
    assert "S1" in strict.render([system("S1")]).text


def test_a_template_that_takes_turns_as_they_are_gets_them_unmerged(starter: Tokenizer) -> None:
    prompt = ChatTemplate(starter).render([system("S1"), user("U1"), user("U2")])
    assert prompt.text.count("<|im_start|>user") == 2
    assert prompt.notices == ()


def test_a_later_system_text_is_said_by_the_user_where_the_template_wants_it_first(
    chatml_tokenizer: Callable[[str], ChatTemplate],
) -> None:
    prompt = chatml_tokenizer(SYSTEM_FIRST_STYLE).render([system("S0"), user("U1"), assistant("A1"), system("S2")])
    assert "<|im_start|>user\nS2" in prompt.text
    assert len(prompt.notices) == 1


def test_a_template_that_drops_the_system_text_in_silence_gets_it_in_the_user_turn(
    chatml_tokenizer: Callable[[str], ChatTemplate],
) -> None:
    template = chatml_tokenizer(DEAF_STYLE)
    assert not template.has_system_role
    prompt = template.render([system("S1"), user("U1")])
    assert "S1\n\nU1" in prompt.text
    assert len(prompt.notices) == 1


def test_a_template_that_rewrites_texts_is_left_to_do_so(chatml_tokenizer: Callable[[str], ChatTemplate]) -> None:
    template = chatml_tokenizer("{% for m in messages %}{{ m.content | upper }};{% endfor %}")
    assert template.render([user("one"), user("two")]).text == "ONE;TWO;"


def test_no_text_is_lost_where_the_template_puts_the_system_text_into_a_user_turn_that_is_not_there(
    chatml_tokenizer: Callable[[str], ChatTemplate],
) -> None:
    template = chatml_tokenizer(SELF_FOLDING_STYLE)
    assert template.render([system("S1"), user("U1")]).notices == ()
    assert "S1" in template.render([system("S1")]).text


@pytest.mark.parametrize(
    ("turns", "index"),
    [([assistant("A"), user("U")], 0), ([user("U"), assistant("A"), {"role": "tool", "content": "T"}], 2)],
)
def test_a_refusal_names_the_message_and_the_templates_reason(
    gemma: ChatTemplate, turns: list[dict[str, Any]], index: int
) -> None:
    with pytest.raises(RequestError, match=rf"messages\[{index}\].*turns must alternate") as caught:
        gemma.render(turns)
    assert caught.value.field == "messages"
    assert str(caught.value).endswith("turns must alternate. Change that message or leave it out.")


# Forms of messages


def test_an_empty_message_list_is_refused(reasoner: ChatTemplate) -> None:
    with pytest.raises(RequestError, match="empty"):
        reasoner.render([])


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ({"role": "robot", "content": "x"}, "robot"),
        ({"content": "x"}, "None"),
        ({"role": [], "content": "x"}, "role of type list"),
        ({"role": {"user": 1}, "content": "x"}, "role of type dict"),
        ("text", "not an object"),
        ({"role": "user", "content": 5}, "neither a text nor a list"),
        (user([{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {}}]), r"content\[1\].*image_url"),
        (user([{"type": "text"}]), r"content\[0\] has no text"),
        (assistant(None, tool_calls=[{"id": "1"}]), "names no function"),
    ],
)
def test_messages_of_another_form_are_refused_by_index(reasoner: ChatTemplate, message: Any, complaint: str) -> None:
    with pytest.raises(RequestError, match=rf"messages\[1\].*{complaint}"):
        reasoner.render([user("x"), message])


def test_text_parts_are_joined_and_missing_content_is_empty(starter: Tokenizer) -> None:
    template = ChatTemplate(starter)
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert "<|im_start|>user\none\ntwo<|im_end|>" in template.render([user(parts)]).text
    assert "<|im_start|>assistant\n<|im_end|>" in template.render([user("x"), assistant(None), user("y")]).text


def test_the_developer_role_is_the_system_role(starter: Tokenizer) -> None:
    assert "<|im_start|>system\nD1" in ChatTemplate(starter).render([{"role": "developer", "content": "D1"}]).text


def test_a_template_that_knows_only_parts_gets_parts(chatml_tokenizer: Callable[[str], ChatTemplate]) -> None:
    prompt = chatml_tokenizer(PARTS_STYLE).render([system("S1"), user("U1")])
    assert prompt.text == "<|im_start|>system\nS1<|im_end|>\n<|im_start|>user\nU1<|im_end|>\n<|im_start|>assistant\n"
    open_end = chatml_tokenizer(PARTS_STYLE).render([user("U1"), assistant("A1 ")], continue_final=True)
    assert open_end.text.endswith("<|im_start|>assistant\nA1 ")


# Tools


def test_a_chat_with_tools_uses_the_template_made_for_them(byte_level_hf: Callable[..., Any]) -> None:
    hf = byte_level_hf(("<|im_end|>",))
    hf.chat_template = {"default": "chat:{{ messages[0].content }}", "tool_use": "tools:{{ messages[0].content }}"}
    template = ChatTemplate(Tokenizer(hf))
    assert template.render([user("x")]).text == "chat:x"
    assert template.render([user("x")], tools=[{"type": "function"}]).text == "tools:x"


def test_tools_that_the_template_does_not_take_are_left_out_with_a_notice(gemma: ChatTemplate) -> None:
    prompt = gemma.render([user("x")], tools=[{"type": "function", "function": {"name": "f"}}])
    assert any("tools" in notice for notice in prompt.notices)


def test_arguments_of_past_tool_calls_reach_the_template_as_objects(
    chatml_tokenizer: Callable[[str], ChatTemplate],
) -> None:
    source = (
        "{% for m in messages %}{{ m.content }}"
        "{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
    )
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1, "é<b>"]}'}}
    broken = {"function": {"name": "f", "arguments": '{"a'}}
    prompt = chatml_tokenizer(source).render([user("x"), assistant(None, tool_calls=[call, broken])])
    assert prompt.text == 'x{"a": [1, "é<b>"]}"{\\"a"'


@pytest.mark.parametrize("arguments", ["[" * 100_000, '{"a": ' + "9" * 5000 + "}"])
def test_arguments_that_cannot_be_read_stay_text(reasoner: ChatTemplate, arguments: str) -> None:
    calls = [{"id": "1", "function": {"name": "f", "arguments": arguments}}]
    assert reasoner.render([user("x"), assistant("y", tool_calls=calls), user("z")]).ids
