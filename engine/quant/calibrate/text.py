"""The text that guides rounding: read, cut into windows, and a part of it held back to measure what was lost."""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from octavo.engine.perplexity import shipped_text
from octavo.engine.quant.calibrate.errors import QuantizeError
from octavo.engine.text.tokenizer import Tokenizer

WINDOW = 1024  # tokens that see each other
LEAST_TOKENS = 1024
_HELD_BACK = 10  # one part in so many of the text is not calibrated with
_MOST_BYTES = 64 << 20  # of a file: some ten million tokens


@dataclass(frozen=True, slots=True)
class Text:
    """Token ids to calibrate with, [windows, length], and others to measure with."""

    windows: Tensor
    held_out: tuple[int, ...]

    @property
    def digest(self) -> str:
        """Tells texts to calibrate with apart."""
        digest = hashlib.sha256(repr(tuple(self.windows.shape)).encode())
        digest.update(self.windows.numpy().tobytes())
        return digest.hexdigest()


def read_text(path: Path | None) -> str:
    """A text file in UTF-8, the documentation that Python ships without one. QuantizeError for what is no text."""
    if path is None:
        return shipped_text()
    try:
        with path.open("rb") as stream:
            raw = stream.read(_MOST_BYTES)
    except FileNotFoundError:
        raise QuantizeError(
            f"There is no file {path}.", remedy="Name a text file of a few hundred kilobytes, such as a book."
        ) from None
    except OSError as error:
        raise QuantizeError(
            f"{path} cannot be read ({error.strerror or error}).", remedy="Name a text file that you may read."
        ) from error
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise QuantizeError(f"{path.name} is encoded as UTF-16.", remedy="Save it as UTF-8.")
    try:
        # the end of what was read may lie within a letter
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(raw, final=len(raw) < _MOST_BYTES)
    except UnicodeDecodeError as error:
        raise QuantizeError(
            f"{path.name} is not text in UTF-8 (byte {error.start}).",
            remedy="Name a plain text file, or save it as UTF-8.",
        ) from None
    if "\0" in text:
        raise QuantizeError(f"{path.name} holds zero bytes, so it is no text.", remedy="Name a plain text file.")
    return text


def cut_text(tokenizer: Tokenizer, text: str, name: str, tokens: int, length: int, evaluate: str | None) -> Text:
    """Windows of at most `length` tokens, `tokens` in all as far as the text goes, spread evenly over it.

    Without a text to `evaluate` with, the last tenth is held back for that. Raises QuantizeError if there is too
    little.
    """
    ids = tokenizer.encode(text)
    if evaluate is not None:
        held: Sequence[int] = tokenizer.encode(evaluate)
        if len(held) < 2:
            raise QuantizeError("The text to evaluate with is empty.", remedy="Name another file with --eval.")
    else:
        at = len(ids) - len(ids) // _HELD_BACK
        ids, held = ids[:at], ids[at:]
    if len(ids) < LEAST_TOKENS:
        raise QuantizeError(
            f"{name} has {len(ids):,} tokens to calibrate with; at least {LEAST_TOKENS:,} are needed, and {tokens:,} "
            "were asked for.",
            remedy="Use a longer text.",
        )
    length = min(length, len(ids))
    there = len(ids) // length
    count = max(1, min(there, tokens // length))
    starts = [number * there // count * length for number in range(count)]
    windows = torch.tensor([ids[start : start + length] for start in starts], dtype=torch.int64)
    return Text(windows, tuple(held))
