"""The one table of sampling fields: range, default, and what 0, -1 and null mean. Requests are checked against it."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from octavo.engine.errors import RequestError
from octavo.engine.request import SamplingParams

MAX_STOP_STRINGS = 16
MAX_STOP_IDS = 256
MAX_BIASES = 1024
MAX_LOGPROBS = 20
MAX_ID_DIGITS = 20  # more than any id has
BAN = -100.0  # a bias of this value removes the token altogether


@dataclass(frozen=True, slots=True)
class Field:
    """One row of the table. `read(field, value, vocab_size)` returns the value SamplingParams carries, or raises."""

    name: str
    allowed: str  # as a user reads it
    default: str
    special: str  # what 0, -1 and null mean
    read: Callable[[Field, object, int], object]
    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False  # `low` itself is not allowed
    off: object = None  # what "off" is in SamplingParams, for fields that have such a spelling
    off_spellings: tuple[int, ...] = ()


def make_params(
    fields: Mapping[str, object],
    *,
    vocab_size: int,
    defaults: Mapping[str, object] | None = None,
    allow_zero_tokens: bool = False,
) -> SamplingParams:
    """SamplingParams from a request's fields; an absent or null field takes its default.

    `defaults` (of the chat, the configuration, the model) obey the same table. `allow_zero_tokens`: max_tokens may be
    0, to score a prompt. Raises RequestError naming the field at fault.
    """
    merged = {name: value for name, value in (defaults or {}).items() if value is not None}
    merged.update((name, value) for name, value in fields.items() if value is not None)
    for name in fields:
        if name not in FIELDS:
            near = difflib.get_close_matches(name, FIELDS, 1)
            raise RequestError(
                f"There is no sampling field {name!r}.",
                field=name,
                remedy=f"Did you mean {near[0]!r}?" if near else f"Known are: {', '.join(FIELDS)}.",
            )
    values: dict[str, object] = {}
    for name, value in merged.items():
        if name == "max_tokens" and allow_zero_tokens and value == 0 and not isinstance(value, bool):
            values[name] = 0
        elif name in FIELDS:
            values[name] = FIELDS[name].read(FIELDS[name], value, vocab_size)
    return SamplingParams(**values)  # type: ignore[arg-type]


def usable_defaults(fields: Mapping[str, object], *, vocab_size: int) -> tuple[dict[str, object], tuple[str, ...]]:
    """The part of a model's own generation settings that the table knows and allows, and a sentence for each value it
    does not allow: a checkpoint's slip must not refuse every request."""
    kept: dict[str, object] = {}
    notices = []
    for name, value in fields.items():
        if name not in FIELDS or value is None:
            continue
        try:
            FIELDS[name].read(FIELDS[name], value, vocab_size)
            kept[name] = value
        except RequestError as error:
            notices.append(f"A default of the model is ignored: {error.message}")
    return kept, tuple(notices)


def describe_fields() -> str:
    """The table as Markdown, for the documentation."""
    lines = ["| field | allowed | default | 0, -1, null |", "|---|---|---|---|"]
    lines += [f"| `{f.name}` | {f.allowed} | {f.default} | {f.special} |" for f in FIELDS.values()]
    return "\n".join(lines) + "\n"


def _refuse(field: Field, value: object) -> RequestError:
    return RequestError(f"{field.name} must be {field.allowed}, not {_shown(value)}.", field=field.name)


def _shown(value: object) -> str:
    try:
        shown = repr(value)
    except ValueError:  # Python writes no whole number of more than 4300 digits
        return "so large a number"
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _is_number(value: object) -> bool:
    # A whole number is always finite, and math.isfinite cannot read one beyond the range of a float.
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole or (isinstance(value, float) and math.isfinite(value))


def _in_range(field: Field, value: float) -> bool:
    return field.low <= value <= field.high and not (field.low_open and value == field.low)


def _read_float(field: Field, value: object, vocab_size: int) -> float:
    if not _is_number(value) or not _in_range(field, value):  # type: ignore[arg-type]
        raise _refuse(field, value)
    return float(value)  # type: ignore[arg-type]


def _read_int(field: Field, value: object, vocab_size: int) -> object:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise _refuse(field, value)
    if value in field.off_spellings:
        return field.off
    if not _in_range(field, value):
        raise _refuse(field, value)
    return value


def _read_top_k(field: Field, value: object, vocab_size: int) -> object:
    read = _read_int(field, value, vocab_size)
    # More than all tokens is all of them; the tensors of a step hold no number of more than 64 bits.
    return min(read, vocab_size) if isinstance(read, int) else read


def _read_bool(field: Field, value: object, vocab_size: int) -> bool:
    if not isinstance(value, bool):
        raise _refuse(field, value)
    return value


def _read_stop(field: Field, value: object, vocab_size: int) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else value
    if not isinstance(strings, list | tuple) or len(strings) > MAX_STOP_STRINGS:
        raise _refuse(field, value)
    if not all(isinstance(text, str) and text for text in strings):
        raise _refuse(field, value)
    return tuple(dict.fromkeys(strings))


def _read_ids(field: Field, value: object, vocab_size: int) -> tuple[int, ...]:
    ids = (value,) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(ids, list | tuple) or len(ids) > MAX_STOP_IDS:
        raise _refuse(field, value)
    return tuple(dict.fromkeys(_token_id(field, token, vocab_size) for token in ids))


def _read_bias(field: Field, value: object, vocab_size: int) -> tuple[tuple[int, float], ...]:
    pairs: Iterable[object] = value.items() if isinstance(value, Mapping) else value  # type: ignore[assignment]
    if not isinstance(value, Mapping | list | tuple) or len(value) > MAX_BIASES:
        raise _refuse(field, value)
    biases: dict[int, float] = {}
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise _refuse(field, value)
        token, bias = pair
        if not _is_number(bias) or not _in_range(field, bias):
            raise _refuse(field, value)
        biases[_token_id(field, token, vocab_size)] = float(bias)
    return tuple(biases.items())


def _token_id(field: Field, token: object, vocab_size: int) -> int:
    if isinstance(token, str) and token.isascii() and token.isdecimal() and len(token) <= MAX_ID_DIGITS:
        token = int(token)
    if not isinstance(token, int) or isinstance(token, bool):
        raise _refuse(field, token)
    if not 0 <= token < vocab_size:
        raise RequestError(
            f"{field.name} names token {_shown(token)}; this model's ids are 0 to {vocab_size - 1}.",
            field=field.name,
            remedy="Send ids of this model's own tokenizer: other models have other ones.",
        )
    return token


_ROWS = (
    Field(
        "temperature", "a number from 0 to 5", "1", "0 takes the likeliest token; null is the default", _read_float,
        0, 5,
    ),
    Field(
        "top_p", "a number above 0, at most 1", "1 (off)", "0 is refused; null is the default", _read_float, 0, 1,
        low_open=True,
    ),
    Field(
        "top_k", "a whole number of at least 1, or 0 or -1", "0 (off)", "0 and -1 turn it off; null is the default",
        _read_top_k, 1, off=0, off_spellings=(0, -1),
    ),
    Field("min_p", "a number from 0 to 1", "0 (off)", "0 turns it off; null is the default", _read_float, 0, 1),
    Field(
        "repetition_penalty", "a number from 0.01 to 10", "1 (off)", "0 is refused; null is the default", _read_float,
        0.01, 10,
    ),
    Field(
        "presence_penalty", "a number from -2 to 2", "0 (off)", "0 turns it off; null is the default", _read_float,
        -2, 2,
    ),
    Field(
        "frequency_penalty", "a number from -2 to 2", "0 (off)", "0 turns it off; null is the default", _read_float,
        -2, 2,
    ),
    Field(
        "logit_bias", f"up to {MAX_BIASES} token ids, each with a number from -100 to 100", "none",
        "-100 removes the token; null is none", _read_bias, -100, 100,
    ),
    Field(
        "seed", "a whole number of at most 64 bits", "drawn afresh", "0 is a seed like any other; -1 and null draw one",
        _read_int, -(2**63), 2**64 - 1, off=None, off_spellings=(-1,),
    ),
    Field(
        "max_tokens", "a whole number of at least 1", "to the end of the context",
        "0 and -1 are refused (0 scores a prompt in /v1/completions with echo); null is to the end of the context; "
        "more than is left is cut to what is left",
        _read_int, 1,
    ),
    Field(
        "stop", f"a non-empty string or a list of up to {MAX_STOP_STRINGS} of them", "none", "null is none", _read_stop
    ),
    Field(
        "stop_token_ids", f"a list of up to {MAX_STOP_IDS} token ids", "none", "0 is token 0; null is none", _read_ids
    ),
    Field("ignore_eos", "true or false", "false", "null is false", _read_bool),
    Field(
        "logprobs", f"a whole number from 0 to {MAX_LOGPROBS}", "none",
        "0 is the chosen token alone; -1 is refused; null is none", _read_int, 0, MAX_LOGPROBS,
    ),
    Field(
        "prompt_logprobs", f"a whole number from 0 to {MAX_LOGPROBS}", "none",
        "0 is the prompt's tokens alone; -1 is refused; null is none", _read_int, 0, MAX_LOGPROBS,
    ),
)  # fmt: skip

FIELDS: Mapping[str, Field] = {field.name: field for field in _ROWS}
