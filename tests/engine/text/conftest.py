"""Tokenizers for the text tests, the starter's own and two small ones of the usual kinds, and templates over them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as RustTokenizer
from transformers import PreTrainedTokenizerFast

from octavo.engine.text import ChatTemplate, Tokenizer

_CORPUS = [
    "Each conversation lives in pages of keys and values, and chats that begin alike share their first pages.",
    "A short reply comes at once; a long one streams word by word until its last sentence has been said.",
    "Words, numbers like 1,024 or 3.14, code such as `for page in pages:` and blanks    are all just text.",
    "Jeder Satz wird Stück für Stück zerlegt, und am Ende steht wieder derselbe Satz. Ça marche très bien.",
    "会話はページに保存されます。最初のページは共有されます。",
    "Hello there! Hello again! The answer is here. The reasoning is there. The user asks, the model answers.",
]


def wrapped(backend: RustTokenizer, **tokens: Any) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False, **tokens)


@pytest.fixture(scope="session")
def byte_level_hf() -> Callable[..., PreTrainedTokenizerFast]:
    """Makes byte-level BPE tokenizers with `special` and `plain` added tokens and an optional begin token."""

    def make(
        special: tuple[str, ...] = (), plain: tuple[str, ...] = (), begin: str | None = None, **tokens: Any
    ) -> Any:
        backend = RustTokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        backend.train_from_iterator(
            _CORPUS, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
        )
        backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
        backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in plain])
        if begin:
            backend.post_processor = processors.TemplateProcessing(
                single=f"{begin} $A", special_tokens=[(begin, backend.token_to_id(begin))]
            )
            tokens["bos_token"] = begin
        return wrapped(backend, **tokens)

    return make


@pytest.fixture(scope="session")
def sentencepiece_hf() -> Callable[..., PreTrainedTokenizerFast]:
    """Makes SentencePiece-style BPE tokenizers: byte fallback, and a blank put before the text (Llama 2, Mistral)."""

    def make(special: tuple[str, ...] = (), plain: tuple[str, ...] = (), **tokens: Any) -> Any:
        trained = RustTokenizer(models.BPE())
        trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
        english = [line for line in _CORPUS if line.isascii()]
        trained.train_from_iterator(english, trainers.BpeTrainer(vocab_size=400, show_progress=False))
        model = json.loads(trained.to_str())["model"]
        pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *model["vocab"]]
        merges = [tuple(merge) for merge in model["merges"]]
        backend = RustTokenizer(
            models.BPE(
                {piece: index for index, piece in enumerate(pieces)},
                merges,
                unk_token="<unk>",
                fuse_unk=True,
                byte_fallback=True,
            )
        )
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        backend.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        added = ("<unk>", "<s>", "</s>", *special)
        backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in added])
        backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in plain])
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
        return wrapped(backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>", **tokens)

    return make


@pytest.fixture(scope="session")
def byte_level(byte_level_hf: Callable[..., Any]) -> Tokenizer:
    """Byte-level BPE with the tokens of ChatML, and reasoning tags that are added tokens but not special."""
    hf = byte_level_hf(("<|endoftext|>", "<|im_start|>", "<|im_end|>"), ("<think>", "</think>"), eos_token="<|im_end|>")
    return Tokenizer(hf, chat_template=CHATML_WITH_REASONING)


@pytest.fixture(scope="session")
def sentencepiece(sentencepiece_hf: Callable[..., Any]) -> Tokenizer:
    return Tokenizer(sentencepiece_hf())


@pytest.fixture(scope="session")
def starter_hf(starter_path: Path) -> Any:
    """The starter model's tokenizer as transformers has it, with the chat template from its file."""
    from octavo.engine.load.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(starter_path)
    try:
        return checkpoint.load_tokenizer()
    finally:
        checkpoint.close()


@pytest.fixture(scope="session")
def starter(starter_hf: Any) -> Tokenizer:
    return Tokenizer(starter_hf)


CHATML_WITH_REASONING = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' and message.reasoning_content and loop.last %}
{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
{%- endif %}
{{- message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking %}
{{- '<think>\\n' }}
{%- endif %}
{%- endif %}"""


@pytest.fixture
def reasoning_template() -> str:
    """A template that reads `reasoning_content` and `enable_thinking` and keeps only the last turn's reasoning."""
    return CHATML_WITH_REASONING


# Templates with the habits of the families they are named after.
MISTRAL_STYLE = """\
{{- bos_token }}
{%- for message in messages %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('roles must alternate user and assistant') }}
{%- endif %}
{%- if message.role == 'user' %}
{{- '[INST] ' + message.content + ' [/INST]' }}
{%- else %}
{{- ' ' + message.content | trim + '</s>' }}
{%- endif %}
{%- endfor %}"""
GEMMA_STYLE = """\
{{- bos_token }}
{%- if messages[0].role == 'system' %}{{- raise_exception('no system role here') }}{%- endif %}
{%- for message in messages %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{- raise_exception('turns must alternate') }}{%- endif %}
{{- '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' }}
{{- message.content | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}"""


@pytest.fixture(scope="session")
def chatml_tokenizer(byte_level_hf: Callable[..., Any]) -> Callable[[str | None], ChatTemplate]:
    def make(source: str | None) -> ChatTemplate:
        hf = byte_level_hf(("<|im_start|>", "<|im_end|>"), eos_token="<|im_end|>")
        return ChatTemplate(Tokenizer(hf, chat_template=source))

    return make


@pytest.fixture(scope="session")
def mistral(sentencepiece_hf: Callable[..., Any]) -> ChatTemplate:
    return ChatTemplate(Tokenizer(sentencepiece_hf(), chat_template=MISTRAL_STYLE))


@pytest.fixture(scope="session")
def gemma(sentencepiece_hf: Callable[..., Any]) -> ChatTemplate:
    hf = sentencepiece_hf(("<start_of_turn>", "<end_of_turn>"))
    return ChatTemplate(Tokenizer(hf, chat_template=GEMMA_STYLE))


@pytest.fixture(scope="session")
def reasoner(byte_level: Tokenizer) -> ChatTemplate:
    return ChatTemplate(byte_level)
