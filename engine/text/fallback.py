"""What stands in for a chat template that a model does not have."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.engine.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Fallback:
    """A template and how it is called in a notice; `stop_strings` where no end-of-turn token ends a reply."""

    source: str
    description: str
    stop_strings: tuple[str, ...] = ()


_CHATML = Fallback(
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "the ChatML form is used",
)
_PLAIN_LINES = Fallback(
    "{% for message in messages %}"
    "{% if message.role == 'system' %}{{ message.content + '\n\n' }}"
    "{% elif message.role == 'assistant' %}{{ 'Assistant: ' + message.content + '\n' }}"
    "{% else %}{{ 'User: ' + message.content + '\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}",
    "plain lines beginning with User: and Assistant: are used",
    ("\nUser:",),
)


def choose_fallback(tokenizer: Tokenizer) -> Fallback:
    """ChatML if the vocabulary has its tokens as control tokens, else plain lines that any model can go on with."""
    has_chatml = all(tokenizer.control_id(token) is not None for token in ("<|im_start|>", "<|im_end|>"))
    return _CHATML if has_chatml else _PLAIN_LINES
