"""The tokenizer a GGUF file carries, as a transformers tokenizer around one of the tokenizers library.

Two kinds exist among the supported families, by `tokenizer.ggml.model`: "gpt2", byte-level BPE with its merges in the
file, and "llama", SentencePiece BPE, whose merges follow from the pieces' scores.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from octavo.engine.errors import UnsupportedModelError
from octavo.engine.load.gguf_metadata import Metadata
from octavo.engine.load.gguf_pretokenizers import DEFAULT_RULE, WORD_RULES, WordRule

# Values of tokenizer.ggml.token_type (GGUF specification).
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5
_SPACE = "▁"  # how SentencePiece spells a space
_PHI3_PLAIN = ("<s>", "<unk>", "<|endoftext|>")
_PADDING = re.compile(r"\[PAD\d+\]|<pad_?\d+>")


class GGUFTokenizer(PreTrainedTokenizerFast):
    """A transformers tokenizer around a finished backend, which its base class would copy at some cost."""

    def __init__(self, backend: Tokenizer, **settings: Any) -> None:
        self._tokenizer = backend
        super().__init__(**settings)


def build_tokenizer(meta: Metadata) -> PreTrainedTokenizerFast:
    """Raises UnsupportedModelError for a kind of vocabulary not read here, CheckpointError for a broken one."""
    kind = meta.text("tokenizer.ggml.model")
    tokens = meta.texts("tokenizer.ggml.tokens")
    if kind == "gpt2":
        backend, add_bos = _byte_level(meta, tokens)
    elif kind == "llama":
        if _is_gemma(meta):  # runs of spaces are pieces here, and the only ones the file spells with spaces
            tokens = [_SPACE * len(token) if token and not token.strip(" ") else token for token in tokens]
        backend, add_bos = _sentencepiece(meta, tokens)
    else:
        raise UnsupportedModelError(
            f"The file's tokenizer is of the kind {kind!r}; read are 'gpt2' and 'llama'.",
            remedy="Use the model's folder with safetensors instead.",
        )
    backend.add_special_tokens(_added(meta, tokens, _CONTROL, special=True))
    backend.add_tokens(_added(meta, tokens, _USER_DEFINED, special=False))
    return GGUFTokenizer(
        backend,
        **_special_tokens(meta, tokens),
        add_bos_token=meta.flag("tokenizer.ggml.add_bos_token", add_bos),
        add_eos_token=meta.flag("tokenizer.ggml.add_eos_token", False),
        chat_template=_chat_template(meta),
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )


def _byte_level(meta: Metadata, tokens: Sequence[str]) -> tuple[Tokenizer, bool]:
    rule = _word_rule(meta)
    backend = Tokenizer(_bpe(meta, _vocabulary(meta, tokens), _merges(meta), ignore_merges=rule.whole_words))
    backend.pre_tokenizer = rule.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    return backend, rule.add_bos


def _merges(meta: Metadata) -> list[tuple[str, str]]:
    """The pairs the file lists; a pair is parted by its first space that is not its first letter."""
    merges = []
    for merge in meta.texts("tokenizer.ggml.merges"):
        cut = merge.find(" ", 1)
        if cut < 0 or cut == len(merge) - 1:
            raise meta.error(f"the merge {merge!r} of its tokenizer is not two parts.")
        merges.append((merge[:cut], merge[cut + 1 :]))
    return merges


def _word_rule(meta: Metadata) -> WordRule:
    name = meta.text("tokenizer.ggml.pre", "default")
    if name == "default":
        return DEFAULT_RULE
    if name not in WORD_RULES:
        raise UnsupportedModelError(
            f"The file's tokenizer cuts words by the rule {name!r}, which is not known.",
            remedy=f"Known are {', '.join(sorted(WORD_RULES))}; use the model's folder with safetensors instead.",
        )
    return WORD_RULES[name]


def _sentencepiece(meta: Metadata, tokens: Sequence[str]) -> tuple[Tokenizer, bool]:
    gemma = _is_gemma(meta)
    vocabulary = _vocabulary(meta, tokens)
    if "tokenizer.ggml.merges" in meta:
        merges = _merges(meta)
    elif gemma:  # merges follow the pieces' order, not their scores
        merges = merges_from_scores(vocabulary, range(0, -len(tokens), -1))
    else:
        scores = meta.numbers("tokenizer.ggml.scores")
        if len(scores) != len(tokens):
            raise meta.error(f"its tokenizer has {len(tokens)} tokens but {len(scores)} scores.")
        merges = merges_from_scores(vocabulary, scores.tolist())
    unknown = _token(meta, tokens, meta.whole("tokenizer.ggml.unknown_token_id", 0))
    backend = Tokenizer(_bpe(meta, vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefix = meta.flag("tokenizer.ggml.add_space_prefix", not gemma)
    steps = [normalizers.Prepend(_SPACE)] if prefix else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    if gemma:
        backend.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    return backend, True


def _is_gemma(meta: Metadata) -> bool:
    return meta.architecture.startswith("gemma")


def merges_from_scores(vocabulary: Mapping[str, int], ranks: Sequence[float]) -> list[tuple[str, str]]:
    """Every way to join two pieces into a third: best score of the result first, then the longest left part."""
    found = []
    for piece, index in vocabulary.items():
        for cut in range(1, len(piece)):
            if piece[:cut] in vocabulary and piece[cut:] in vocabulary:
                found.append((-ranks[index], -cut, cut - len(piece), index, piece))
    found.sort()
    return [(piece[:-minus], piece[-minus:]) for _, minus, _, _, piece in found]


def _vocabulary(meta: Metadata, tokens: Sequence[str]) -> dict[str, int]:
    """Token to id. Entries that only pad the table to a round size stay out, as in the original tokenizer."""
    types = _types(meta, tokens)
    vocabulary: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if types[index] == _UNUSED and _PADDING.fullmatch(token):
            continue
        vocabulary[token] = index  # of two spelled alike the later one counts, as in the reference implementation
    return vocabulary


def _bpe(meta: Metadata, vocabulary: dict[str, int], merges: list[tuple[str, str]], **settings: Any) -> BPE:
    try:
        return BPE(vocabulary, merges, **settings)
    except Exception as error:  # the library raises plain Exception for a merge of tokens that are not there
        raise meta.error(f"its tokenizer's merges do not fit its tokens ({error}).") from error


def _types(meta: Metadata, tokens: Sequence[str]) -> Sequence[int]:
    types = meta.numbers("tokenizer.ggml.token_type", None)
    if types is None:
        return [1] * len(tokens)
    if len(types) != len(tokens):
        raise meta.error(f"its tokenizer has {len(tokens)} tokens but {len(types)} token types.")
    return types.tolist()


def _added(meta: Metadata, tokens: Sequence[str], wanted: int, *, special: bool) -> list[AddedToken]:
    # Phi-3's markers swallow the white space that follows them.
    strip = meta.architecture == "phi3" and meta.text("tokenizer.ggml.model") == "llama"
    return [
        AddedToken(token, normalized=False, special=special, rstrip=strip and token not in _PHI3_PLAIN)
        for token, kind in zip(tokens, _types(meta, tokens))
        if kind == wanted and token
    ]


def _special_tokens(meta: Metadata, tokens: Sequence[str]) -> dict[str, str]:
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    ids = {name: meta.whole(f"tokenizer.ggml.{key}_token_id", None) for key, name in names.items()}
    return {name: _token(meta, tokens, index) for name, index in ids.items() if index is not None}


def _token(meta: Metadata, tokens: Sequence[str], index: int) -> str:
    if not 0 <= index < len(tokens):
        raise meta.error(f"its tokenizer names the token {index}, but has {len(tokens)}.")
    return tokens[index]


def _chat_template(meta: Metadata) -> str | dict[str, str] | None:
    """The file's template; with further named ones (tool use, say) beside it, all by name."""
    template = meta.text("tokenizer.chat_template", None)
    names = meta.texts("tokenizer.chat_templates", None)
    if template is None or not names:
        return template
    named = {name: meta.text(f"tokenizer.chat_template.{name}", None) for name in names}
    return {"default": template} | {name: text for name, text in named.items() if text is not None}
