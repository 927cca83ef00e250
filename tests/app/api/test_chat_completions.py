"""/v1/chat/completions, as the real openai client sees it."""

from __future__ import annotations

from openai import OpenAI


def test_a_reply_comes_in_openais_form(client: OpenAI) -> None:
    reply = client.chat.completions.create(model="default", messages=[{"role": "user", "content": "hi"}])
    assert reply.object == "chat.completion"
    assert reply.model == "fake-model"
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].message.content == "You said: hi"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None
    assert reply.usage.completion_tokens == len("You said: hi") + 1
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def test_a_streamed_reply_has_the_same_text_and_usage(client: OpenAI) -> None:
    plain = client.chat.completions.create(model="default", messages=[{"role": "user", "content": "hi"}])
    chunks = list(
        client.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "You said: hi"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["stop"]
    assert len({c.id for c in chunks}) == 1
    last = chunks[-1]
    assert last.choices == []
    assert last.usage is not None
    assert plain.usage is not None
    assert last.usage.total_tokens == plain.usage.total_tokens
    assert all(c.usage is None for c in chunks[:-1])
