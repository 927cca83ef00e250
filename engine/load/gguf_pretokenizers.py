"""How a byte-level vocabulary cuts text into words before merging, by the name a GGUF file gives its pre-tokenizer.

The patterns are facts of the vocabularies: merges were learned inside such words, and other cuts give other ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TAIL_SLASH = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"|[^\r\n\p{L}\p{N}]?\p{L}+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN2 = _CONTRACTIONS + _WORD + r"|\p{N}" + _TAIL
LLAMA3 = _CONTRACTIONS + _WORD + r"|\p{N}{1,3}" + _TAIL
TEKKEN = f"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*" + r"|\p{N}" + _TAIL_SLASH
GPT4O = (
    f"{_LEAD}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_LEAD}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    + r"|\p{N}{1,3}"
    + _TAIL_SLASH
)


@dataclass(frozen=True, slots=True)
class WordRule:
    """`pattern` cuts words; `single_digits` first sets every digit apart; `whole_words`: a word that is itself in the
    vocabulary is taken without merging; `add_bos`: what a file without `add_bos_token` means."""

    pattern: str
    single_digits: bool = False
    whole_words: bool = False
    add_bos: bool = False

    def pre_tokenizer(self) -> PreTokenizer:
        """The steps as the tokenizers library runs them; the last one spells bytes as letters."""
        digits = [pre_tokenizers.Digits(individual_digits=True)] if self.single_digits else []
        if self.pattern == GPT2:  # built in, and faster than the same pattern given
            return pre_tokenizers.Sequence([*digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
        return pre_tokenizers.Sequence(
            [
                *digits,
                pre_tokenizers.Split(Regex(self.pattern), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )


_GPT2 = WordRule(GPT2)
_CODE = WordRule(GPT2, single_digits=True)
_QWEN2 = WordRule(QWEN2)
_LLAMA3 = WordRule(LLAMA3, whole_words=True, add_bos=True)
_GPT4O = WordRule(GPT4O)

WORD_RULES: Mapping[str, WordRule] = {
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "mpt", "modern-bert", "exaone4", "trillion", "granite-docling"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "minerva-7b"), _CODE),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2"), _QWEN2),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "midm-2.0", "lfm2"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"), WordRule(LLAMA3)),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2"), _GPT4O),
    "tekken": WordRule(TEKKEN, whole_words=True, add_bos=True),
}
# Files older than the key, and "default": the rule most of them meant.
DEFAULT_RULE = _GPT2
