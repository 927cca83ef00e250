"""Log probabilities in OpenAI's two forms: objects a token for chats, parallel lists for completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from octavo.engine.request import TokenLogprob

if TYPE_CHECKING:
    from octavo.engine.text.tokenizer import Tokenizer

LOWEST = -9999.0  # JSON has no minus infinity; OpenAI's own stand-in for "impossible"


def chat_logprobs(tokenizer: Tokenizer, entries: Sequence[TokenLogprob], top: int) -> dict[str, Any]:
    """The `logprobs` of a chat choice or chunk, each token with its `top` best alternatives."""
    content = [
        {
            **_token(tokenizer, entry.token_id, entry.logprob),
            "top_logprobs": [_token(tokenizer, token_id, logprob) for token_id, logprob in entry.top[:top]],
        }
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(
    tokenizer: Tokenizer, entries: Sequence[tuple[int, TokenLogprob | None]], top: int, *, offset: int = 0
) -> dict[str, Any]:
    """The `logprobs` of a completion choice or chunk from (token id, its entry); the first token of a text has none.

    `offset` is how many characters of the choice's text came before.
    """
    tokens, values, alternatives, offsets = [], [], [], []
    text = b""
    for token_id, entry in entries:
        offsets.append(offset + len(text.decode("utf-8", "ignore")))
        if token_id not in tokenizer.special_ids:  # these are not part of the text
            text += tokenizer.token_bytes(token_id)
        tokens.append(_name(tokenizer, token_id))
        values.append(None if entry is None else _finite(entry.logprob))
        alternatives.append(
            None if entry is None else {_name(tokenizer, i): _finite(logprob) for i, logprob in entry.top[:top]}
        )
    return {
        "tokens": tokens,
        "token_logprobs": values,
        "top_logprobs": alternatives if top else None,
        "text_offset": offsets,
    }


def _token(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    data = tokenizer.token_bytes(token_id)
    return {"token": _name(tokenizer, token_id), "logprob": _finite(logprob), "bytes": list(data)}


def _name(tokenizer: Tokenizer, token_id: int) -> str:
    """The token's text; part of a character is written as its bytes, so that different tokens stay different."""
    data = tokenizer.token_bytes(token_id)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _finite(logprob: float) -> float:
    return logprob if logprob > LOWEST else LOWEST
