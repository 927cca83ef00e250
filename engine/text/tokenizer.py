"""The tokenizer as the engine and the chat need it. Knows one Rust tokenizer; the chat template is used elsewhere."""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as RustTokenizer

from octavo.engine.errors import UnsupportedModelError
from octavo.engine.text.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer, complete_text
from octavo.engine.text.token_bytes import byte_recipe

Segment = tuple[str, bool]  # a text, and whether control tokens written in it are control tokens


class Tokenizer:
    """Text to ids and back for one model; safe to use from several threads.

    A control token is an added token that is marked special, or that the chat template writes (such as `<think>`).
    Text from people never turns into one unless the caller allows it. Ids beyond the vocabulary decode to nothing.
    """

    def __init__(self, hf_tokenizer: Any, *, chat_template: str | None = None, name: str = "") -> None:
        """`hf_tokenizer`: a transformers tokenizer with a Rust backend. `chat_template` goes before its own template.

        Raises UnsupportedModelError if it has no Rust backend.
        """
        backend = getattr(hf_tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise UnsupportedModelError(
                f"The tokenizer class {type(hf_tokenizer).__name__} has no tokenizer.json form.",
                remedy="Use a checkpoint that carries a tokenizer.json file.",
            )
        self.name = name
        self._backend: RustTokenizer = backend
        backend.no_truncation()  # limits written in tokenizer.json would cut prompts without a word
        backend.no_padding()
        self.templates = _named_templates(chat_template or getattr(hf_tokenizer, "chat_template", None))
        self.special_tokens: dict[str, str] = {
            key: str(value)
            for key, value in hf_tokenizer.special_tokens_map.items()
            if isinstance(value, str | AddedToken)
        }
        added = backend.get_added_tokens_decoder()
        self.special_ids: frozenset[int] = frozenset(i for i, token in added.items() if token.special)
        written = "\0".join(self.templates.values())
        self._control: dict[str, int] = {
            token.content: i
            for i, token in added.items()
            if token.special or (token.content in written and not token.content.isspace())
        }
        self.control_ids: frozenset[int] = frozenset(self._control.values())
        longest_first = sorted(self._control, key=len, reverse=True)
        self._control_pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self.vocabulary: dict[str, int] = backend.get_vocab()  # added tokens included
        self.vocab_size: int = max(self.vocabulary.values(), default=-1) + 1  # ids may have gaps
        self.bos_id: int | None = hf_tokenizer.bos_token_id
        self.eos_id: int | None = hf_tokenizer.eos_token_id

        state = backend.decoder.__getstate__() if backend.decoder is not None else b"null"
        self._recipe = byte_recipe(json.loads(state))
        self.has_exact_bytes = self._recipe is not None  # else a token's text depends on its neighbours
        self._all_bytes = _ByteTable(self, frozenset())
        self._visible: dict[frozenset[int], _ByteTable] = {}
        first = backend.encode("a", add_special_tokens=False).tokens[:1]
        self._blank_before_text = bool(first) and first[0][:1] in ("\N{LOWER ONE EIGHTH BLOCK}", "Ġ", " ")
        self.begin_ids = self._find_begin_ids(getattr(hf_tokenizer, "add_bos_token", None))
        # Where nothing reaches across a control token, the text between two of them is always the same ids.
        self._runs_stand_alone = not self._blank_before_text and all(
            not (token.lstrip or token.rstrip or token.single_word or (token.normalized and backend.normalizer))
            for i, token in added.items()
            if i in self.control_ids
        )
        self._run_cache = _RunCache()
        self._plain_backend: RustTokenizer | None = None
        self._plain_lock = threading.Lock()

    @property
    def chat_template(self) -> str | None:
        """The template for chats without tools, as jinja source."""
        return self.templates.get("default") or next(iter(self.templates.values()), None)

    @property
    def control_pattern(self) -> re.Pattern[str]:
        """Matches any control token's text, longer ones first."""
        return self._control_pattern

    # Text to ids

    def encode(self, text: str, *, allow_control: bool = False) -> list[int]:
        """Ids of `text` as the start of a text, without a begin token."""
        return self.encode_segments([(text, allow_control)])

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a raw prompt: control tokens written in it count, and the model's begin token comes first, once."""
        return self.with_begin(self.encode(text, allow_control=True))

    def with_begin(self, ids: Sequence[int]) -> list[int]:
        """`ids` with exactly the begin token that the model wants."""
        begin = self.begin_ids
        rest = list(ids)
        while begin and rest[: len(begin)] == begin:
            rest = rest[len(begin) :]
        return begin + rest

    def encode_segments(self, segments: Iterable[Segment], *, continues: bool = False) -> list[int]:
        """Ids of consecutive pieces of one text, each with its own answer to whether control tokens count in it.

        `continues`: the text goes on after other ids, so that no blank is put before it.
        """
        ids: list[int] = []
        joined: list[str] = []

        def encode_joined() -> None:
            if text := "".join(joined):
                ids.extend(self._encode_with_control(text, continues=continues or bool(ids)))
            joined.clear()

        for text, allow_control in segments:
            if allow_control:
                joined.append(text)
                continue
            encode_joined()  # never together with its neighbours: what they spell in common would count
            end = 0
            for match in self._control_pattern.finditer(text):
                joined.append(text[end : match.start()])
                encode_joined()
                ids.extend(self._encode_as_text(match[0], continues=continues or bool(ids)))
                end = match.end()
            joined.append(text[end:])
            encode_joined()
        encode_joined()
        return ids

    def token_id(self, text: str) -> int | None:
        """The id of the vocabulary entry or control token `text`, or None."""
        token_id: int | None = self._backend.token_to_id(text)
        return token_id

    def control_id(self, text: str) -> int | None:
        """The id of the control token `text`, or None if it is ordinary text in this vocabulary."""
        return self._control.get(text)

    # Ids to text

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """One-shot decoding. Invalid bytes become U+FFFD; half a character at the end is left out."""
        if self._recipe is None:
            return self._decode_window([i for i in ids if 0 <= i < self.vocab_size], skip_special)
        table = self._visible_bytes(frozenset()) if skip_special else self._all_bytes
        data = b"".join([table[i] for i in ids])
        return complete_text(data[1:] if self._recipe.drops_first_blank and data[:1] == b" " else data)

    def token_text(self, token_id: int) -> str:
        """One token by itself, blanks included; U+FFFD for a part of a character."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token stands for; b"" for an id beyond the vocabulary."""
        return self._all_bytes[token_id]

    def detokenizer(self, prompt_ids: Sequence[int] = (), *, keep: Collection[int] = ()) -> Detokenizer:
        """A stream decoder for the reply to `prompt_ids`; special tokens are skipped except those in `keep`."""
        kept = frozenset(keep) & self.special_ids
        if self._recipe is None:
            hidden = self.special_ids - kept
            size = self.vocab_size

            def decode(ids: Sequence[int]) -> str:
                return self._decode_window([i for i in ids if 0 <= i < size and i not in hidden], False)

            return WindowDetokenizer(decode, prompt_ids)
        table = self._visible_bytes(kept)
        return ByteDetokenizer(table, prompt_ids, drop_first_blank=self._recipe.drops_first_blank)

    # Inside

    def _encode_with_control(self, text: str, *, continues: bool) -> list[int]:
        """Ids of text in which control tokens count. A chat's earlier turns are not tokenized again."""
        if not self._runs_stand_alone:
            return self._encode_piece(self._backend, text, continues=continues)
        ids: list[int] = []
        end = 0
        for match in self._control_pattern.finditer(text):
            ids.extend(self._encode_run(text[end : match.start()]))
            ids.append(self._control[match[0]])
            end = match.end()
        ids.extend(self._encode_run(text[end:]))
        return ids

    def _encode_run(self, text: str) -> Sequence[int]:
        if not text:
            return ()
        ids = self._run_cache.get(text)
        if ids is None:
            ids = tuple(self._encode_piece(self._backend, text, continues=False))
            self._run_cache.put(text, ids)
        return ids

    def _encode_piece(self, backend: RustTokenizer, text: str, *, continues: bool) -> list[int]:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:  # half of a surrogate pair, as broken JSON carries it
            text = re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text)
        if continues and self._blank_before_text:
            # Encoded after a line break, the text gets no blank in front; then the line break is taken off.
            anchor: list[int] = backend.encode("\n", add_special_tokens=False).ids
            ids: list[int] = backend.encode("\n" + text, add_special_tokens=False).ids
            if ids[: len(anchor)] == anchor:
                return ids[len(anchor) :]
        return list(backend.encode(text, add_special_tokens=False).ids)

    def _encode_as_text(self, token: str, *, continues: bool) -> list[int]:
        """Ids of a control token's spelling, none of which is a control token."""
        ids = self._encode_piece(self._plain(), token, continues=continues)
        if self.control_ids.isdisjoint(ids):
            return ids
        # A unigram vocabulary may find the whole spelling among its pieces; it cannot across two calls.
        if len(token) == 1:
            return []
        head = self._encode_as_text(token[:1], continues=continues)
        return head + self._encode_as_text(token[1:], continues=True)

    def _plain(self) -> RustTokenizer:
        """A copy that sees no control tokens, made when somebody first types one. The original is never switched
        over: other threads are reading it."""
        with self._plain_lock:
            if self._plain_backend is None:
                description = json.loads(self._backend.to_str())
                for token in description["added_tokens"]:
                    token["special"] = token["content"] in self._control
                plain = RustTokenizer.from_str(json.dumps(description))
                plain.encode_special_tokens = True
                self._plain_backend = plain
            return self._plain_backend

    def _find_begin_ids(self, add_bos: bool | None) -> list[int]:
        """What the tokenizer's own post-processing puts before a text."""
        bare = self._backend.encode("a", add_special_tokens=False).ids
        full = self._backend.encode("a", add_special_tokens=True).ids
        for start in range(len(full) - len(bare) + 1):
            if full[start : start + len(bare)] == bare:
                begin: list[int] = full[:start]
                break
        else:
            begin = []
        if add_bos and not begin and self.bos_id is not None:
            return [self.bos_id]
        return begin

    def _visible_bytes(self, keep: frozenset[int]) -> _ByteTable:
        table = self._visible.get(keep)
        if table is None:
            table = self._visible[keep] = _ByteTable(self, self.special_ids - keep)
        return table

    def _entry_bytes(self, token_id: int) -> bytes:
        entry = self._backend.id_to_token(token_id)
        if entry is None:
            return b""
        return self._recipe.to_bytes(entry) if self._recipe else entry.encode("utf-8", "replace")

    def _decode_window(self, ids: Sequence[int], skip_special: bool) -> str:
        text: str = self._backend.decode(list(ids), skip_special_tokens=skip_special)
        return text


class _ByteTable(dict[int, bytes]):
    """Bytes of each id, looked up on first use. Hidden ids and ids beyond the vocabulary have none."""

    def __init__(self, tokenizer: Tokenizer, hidden: frozenset[int]) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._hidden = hidden

    def __missing__(self, token_id: int) -> bytes:
        if not 0 <= token_id < self._tokenizer.vocab_size:
            return b""  # not remembered: the table stays no larger than the vocabulary
        data = b"" if token_id in self._hidden else self._tokenizer._entry_bytes(token_id)
        self[token_id] = data
        return data


class _RunCache:
    """The ids of the texts encoded last, up to a total length."""

    _SHORTEST = 32  # characters; looking a shorter text up is no faster than encoding it
    _TOTAL = 4_000_000  # characters, the text of a few very long chats: some 50 MB with their ids

    def __init__(self) -> None:
        self._entries: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def get(self, text: str) -> tuple[int, ...] | None:
        with self._lock:
            ids = self._entries.get(text)
            if ids is not None:
                self._entries.move_to_end(text)
            return ids

    def put(self, text: str, ids: tuple[int, ...]) -> None:
        if not self._SHORTEST <= len(text) <= self._TOTAL:
            return
        with self._lock:
            if text not in self._entries:
                self._size += len(text)
            self._entries[text] = ids
            while self._size > self._TOTAL:
                oldest, _ = self._entries.popitem(last=False)
                self._size -= len(oldest)


def _named_templates(template: object) -> dict[str, str]:
    """Templates by name. A checkpoint may hold anything there: what is no text counts as no template."""
    named = template if isinstance(template, Mapping) else {"default": template}
    return {name: text for name, text in named.items() if isinstance(name, str) and isinstance(text, str) and text}
