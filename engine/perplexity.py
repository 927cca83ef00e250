"""How well a model predicts a text: what a format of weights or cache costs in quality, measured where it runs.

`python -m octavo.engine.perplexity --model PATH --quantization int8` compares formats on the same text; without --text
it is the documentation that Python itself ships as text (pydoc_data.topics).
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from octavo.engine.config import EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.errors import OctavoError, RequestError
from octavo.engine.quant import FORMATS
from octavo.engine.request import SamplingParams
from octavo.engine.run.resolve import KV_DTYPES

WINDOW = 1024  # tokens that are scored together, the first of them only as context
TOKENS = 50_000


@dataclass(frozen=True, slots=True)
class Perplexity:
    """`value` is exp of the mean negative log probability of `tokens` tokens."""

    value: float
    tokens: int


def perplexity(
    engine: Engine,
    token_ids: Sequence[int],
    window: int = WINDOW,
    progress: Callable[[int, int], None] | None = None,
) -> Perplexity:
    """Scores a text window by window, none of which sees another. Raises RequestError for fewer than two tokens."""
    params = SamplingParams(temperature=0.0, max_tokens=0, prompt_logprobs=0)
    total, count = 0.0, 0
    pieces = [token_ids[begin : begin + window] for begin in range(0, len(token_ids), window)]
    for number, piece in enumerate(pieces, 1):
        if len(piece) < 2:
            continue
        scored = engine.submit(list(piece), params).result().finished.prompt_logprobs or ()
        found = [entry.logprob for entry in scored if entry is not None]
        total -= sum(found)
        count += len(found)
        if progress is not None:
            progress(number, len(pieces))
    if not count:
        raise RequestError(
            "The text has fewer than two tokens, so there is nothing to predict.", remedy="Give a longer text."
        )
    return Perplexity(math.exp(total / count), count)


def shipped_text() -> str:
    """English prose that every Python brings along: about 110,000 tokens, the same for one version of Python."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code (0 fine, 1 failed, 2 wrong flags)."""
    parser = argparse.ArgumentParser(
        prog="python -m octavo.engine.perplexity", description="Measure what a weight format costs in quality."
    )
    parser.add_argument("--model", required=True, help="a folder or a .gguf file")
    parser.add_argument("--quantization", default="none", choices=sorted(FORMATS))
    parser.add_argument("--quantize-head", action="store_true")
    parser.add_argument("--kv-cache-dtype", default="auto", choices=["auto", *KV_DTYPES])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--text", type=Path, help="a UTF-8 text file")
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument(
        "--step-tokens", type=int, default=WINDOW, help="tokens of a step; 1: each as if it had just been drawn"
    )
    flags = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    config = EngineConfig(
        device=flags.device,
        dtype=flags.dtype,
        quantization=flags.quantization,
        quantize_head=flags.quantize_head,
        kv_cache_dtype=flags.kv_cache_dtype,
        context_length=WINDOW + 1,
        prefill_chunk=flags.step_tokens,
        prefix_sharing=False,
        max_running=1,
    )
    try:
        text = flags.text.read_text(encoding="utf-8") if flags.text else shipped_text()
        engine = Engine.load(flags.model, config)
        try:
            found = perplexity(engine, engine.tokenizer.encode(text)[: flags.tokens])
        finally:
            engine.close()
    except (OctavoError, OSError, UnicodeDecodeError) as error:
        print(f"octavo perplexity: {error}", file=sys.stderr)
        return 1
    row = {
        "model": flags.model,
        "quantization": flags.quantization,
        "quantize_head": flags.quantize_head,
        "kv_cache_dtype": engine.info.kv_dtype,
        "step_tokens": flags.step_tokens,
        "perplexity": round(found.value, 4),
        "tokens": found.tokens,
        "weight_bytes": engine.info.weight_bytes,
    }
    print(json.dumps(row))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
