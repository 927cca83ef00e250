"""The benchmark: fixed workloads of random prompts through the engine, the way serving engines are compared.

`octavo bench` and `python -m octavo.engine.bench` are the same program; the second needs only torch, transformers
and triton. Every workload runs three times with fresh prompts; the best of the last two counts.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import datetime
import itertools
import json
import logging
import platform
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from octavo.engine.assemble import benchmark_data
from octavo.engine.config import EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.errors import DeviceError, OctavoError, RequestError
from octavo.engine.model.mixes import MIXES
from octavo.engine.quant import FORMATS
from octavo.engine.request import Delta, SamplingParams
from octavo.engine.run.resolve import KV_DTYPES
from octavo.engine.speculate.recorded import RecordedDrafter
from octavo.engine.stream import RequestHandle

REPETITIONS = 3
SETTLE_S = 60.0
NOISE_ALONE = 1e4  # a temperature
COMPARABLE = ("fusion", "paged_attention", "prefix_sharing")


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests that all arrive at once; the first `shared_prefix` prompt tokens are the same in every one."""

    name: str
    requests: int
    prompt_tokens: int
    shared_prefix: int
    new_tokens: int
    text: str | None = None  # a message in words instead of random ids, for models with a tokenizer; ends where it ends
    begins: str = ""  # the reply's first words, given

    @property
    def context_length(self) -> int:
        return self.prompt_tokens + self.new_tokens


@dataclass(slots=True)
class _Reading:
    """When the tokens of one request arrived: (seconds, how many), and which they were."""

    arrivals: list[tuple[float, int]] = dataclasses.field(default_factory=list)
    prompt: list[int] = dataclasses.field(default_factory=list)
    token_ids: list[int] = dataclasses.field(default_factory=list)

    @property
    def first_s(self) -> float:
        return self.arrivals[0][0]

    @property
    def last_s(self) -> float:
        return self.arrivals[-1][0]

    @property
    def tokens(self) -> int:
        return sum(count for _, count in self.arrivals)


def find_workloads(names: Sequence[str]) -> list[Workload]:
    """The workloads of those names. Raises RequestError for an unknown one, or none at all."""
    known = {entry["name"]: Workload(**entry) for entry in benchmark_data()["workloads"]}
    missing = [name for name in names if name not in known]
    if missing or not names:
        which = f"There is no workload {missing[0]!r}." if missing else "No workload is named."
        raise RequestError(which, remedy=f"Known ones: {', '.join(known)}.")
    return [known[name] for name in names]


def run_workload(
    engine: Engine, workload: Workload, repetitions: int = REPETITIONS, forced: tuple[float, int] | None = None
) -> dict[str, float]:
    """Figures of one workload: the best of the repetitions after the first.

    `forced`: (acceptance, window) of guesses read from a recording, which a run without guesses makes before
    each one; `plain_out_tok_s` is that run's speed.
    """
    runs = []
    for seed in range(repetitions):
        plain = {}
        if forced is not None:
            engine.guess_with(None, 0)
            readings = _read_all(engine, workload, seed, drawn=True)
            plain = {"plain_out_tok_s": _figures(workload, readings)["out_tok_s"]}
            said = {tuple(reading.prompt): reading.token_ids for reading in readings}
            engine.guess_with(RecordedDrafter(said, forced[0], seed), forced[1], always=True)
        runs.append(_run_once(engine, workload, seed, drawn=forced is not None) | plain)
    key = "out_tok_s" if workload.new_tokens > 1 else "prompt_tok_s"
    return max(runs[1:] or runs, key=lambda row: row[key])


def _run_once(engine: Engine, workload: Workload, seed: int, *, drawn: bool) -> dict[str, float]:
    engine.settle(SETTLE_S)  # its picture of itself is new then
    before = engine.status().counters
    figures = _figures(workload, _read_all(engine, workload, seed, drawn=drawn))
    engine.settle(SETTLE_S)  # what a run had captured for the next ones is part of no run
    after = engine.status().counters
    names = ("steps", "draft_tokens", "accepted_tokens")
    return figures | {name: float(after[name] - before[name]) for name in names}


def _read_all(engine: Engine, workload: Workload, seed: int, *, drawn: bool) -> list[_Reading]:
    """Sends the workload's requests at once and reads them to their ends.

    `drawn`: at a temperature at which the noise alone decides, so that a reply is the same word for word however many
    tokens a step computes and however their scores are rounded.
    """
    prompts = _prompts(engine, workload, seed)
    params = SamplingParams(
        temperature=NOISE_ALONE if drawn else 0.0,
        max_tokens=workload.new_tokens,
        ignore_eos=workload.text is None,
        seed=seed,
    )
    readings = [_Reading(prompt=prompt) for prompt in prompts]
    begin = time.perf_counter()
    handles = [engine.submit(prompt, params) for prompt in prompts]
    asyncio.run(_read_together(handles, readings, begin))
    return readings


async def _read_together(handles: Sequence[RequestHandle], readings: Sequence[_Reading], begin: float) -> None:
    """As the server reads: all streams in one loop."""
    await asyncio.gather(*(_read(handle, reading, begin) for handle, reading in zip(handles, readings, strict=True)))


def _prompts(engine: Engine, workload: Workload, seed: int) -> list[list[int]]:
    if workload.text is not None:
        messages = [{"role": "user", "content": workload.text}]
        ids = [*engine.template.render(messages).ids, *engine.tokenizer.encode(workload.begins)]
        return [ids] * workload.requests
    rng = random.Random(f"{workload.name}-{seed}")
    vocab = engine.info.vocab_size
    shared = [rng.randrange(3, vocab) for _ in range(workload.shared_prefix)]
    own = workload.prompt_tokens - workload.shared_prefix
    return [[*shared, *(rng.randrange(3, vocab) for _ in range(own))] for _ in range(workload.requests)]


async def _read(handle: RequestHandle, reading: _Reading, begin: float) -> None:
    async for event in handle.stream():
        if isinstance(event, Delta) and event.token_ids:
            reading.arrivals.append((time.perf_counter() - begin, len(event.token_ids)))
            reading.token_ids.extend(event.token_ids)


def _figures(workload: Workload, readings: Sequence[_Reading]) -> dict[str, float]:
    short = [reading for reading in readings if reading.tokens != workload.new_tokens]
    if short and workload.text is None:
        raise RequestError(
            f"{len(short)} requests of {workload.name} ended before {workload.new_tokens} tokens.",
            remedy="Measure another model, or find with --debug what ended them.",
        )
    seconds = max(reading.last_s for reading in readings)
    new = sum(reading.tokens for reading in readings)
    last_first = max(reading.first_s for reading in readings)
    after_first = new - len(readings)
    decode_s = seconds - min(last_first, seconds)
    late = sum(count for r in readings for at, count in r.arrivals if at > last_first)
    gaps = [
        (b[0] - a[0]) / b[1] * 1000 for r in readings for a, b in itertools.pairwise(r.arrivals) for _ in range(b[1])
    ]
    decode = (after_first if len(readings) == 1 else late) / decode_s if decode_s > 0 and after_first else 0.0
    return {
        "s": seconds,
        "out_tok_s": new / seconds,
        "prompt_tok_s": workload.requests * workload.prompt_tokens / seconds,
        "decode_tok_s": decode,
        "ttft_p50_ms": statistics.median(r.first_s for r in readings) * 1000,
        "itl_p50_ms": statistics.median(gaps) if gaps else 0.0,
        "itl_p99_ms": sorted(gaps)[int(len(gaps) * 0.99)] if gaps else 0.0,
    }


def copy_bandwidth(device: torch.device) -> float:
    """Measured bytes per second of a large copy on the device, read and written bytes both counted."""
    size = (4 << 30) if device.type == "cuda" else (256 << 20)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(6):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        begin = time.perf_counter()
        target.copy_(source)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - begin)
    return 2 * size / best


def _variants(compare: Sequence[str]) -> Iterator[dict[str, Any]]:
    unknown = [name for name in compare if name not in COMPARABLE]
    if unknown:
        raise RequestError(f"{unknown[0]!r} cannot be compared.", remedy=f"Choose from {', '.join(COMPARABLE)}.")
    yield {}
    for name in compare:
        yield {name: False}


def _peak_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return int(psutil.Process().memory_info().rss)


def bench(
    model: str,
    workloads: Sequence[Workload],
    config: EngineConfig,
    compare: Sequence[str] = (),
    repetitions: int = REPETITIONS,
    forced_acceptance: float | None = None,
) -> dict[str, Any]:
    """Runs the workloads, once as configured and once with each of `compare` switched off; returns the result file."""
    forced = None if forced_acceptance is None else (forced_acceptance, config.draft_tokens)
    rows: list[dict[str, Any]] = []
    head: dict[str, Any] = {}
    for changes in _variants(compare):
        variant = dataclasses.replace(
            config,
            **changes,
            max_running=max(workload.requests for workload in workloads),
            queue_limit=max(config.queue_limit, *(workload.requests for workload in workloads)),
            context_length=config.context_length or max(workload.context_length for workload in workloads),
        )
        begin = time.perf_counter()
        engine = Engine.load(model, variant)
        start_s = time.perf_counter() - begin
        try:
            for notice in engine.info.notices:
                print(f"octavo bench: {notice}", file=sys.stderr, flush=True)
            runs = engine.status().settings
            device = torch.device(str(runs["device"]))
            bandwidth = head.get("copy_bandwidth_bytes_s") or copy_bandwidth(device)
            head = head or _head(engine, device, start_s, bandwidth)
            for workload in workloads:
                if device.type == "cuda":
                    torch.cuda.reset_peak_memory_stats(device)
                figures = run_workload(engine, workload, repetitions, forced)
                limit = bandwidth * workload.requests / engine.info.weight_bytes
                row: dict[str, Any] = {"workload": workload.name, **figures}
                row["peak_memory_bytes"] = _peak_memory(device)
                row["memory_limit_fraction"] = figures["decode_tok_s"] / limit
                row |= {"model": model, "quantization": variant.quantization, "kv_cache_dtype": engine.info.kv_dtype}
                row |= {
                    "paged_attention": variant.paged_attention,
                    "fusion": variant.fusion,
                    "speculation": runs["speculation"] if forced is None else f"forced {forced_acceptance}",
                }
                row |= {"prefix_sharing": variant.prefix_sharing}
                rows.append(row)
                print(_line(row), file=sys.stderr, flush=True)
        finally:
            engine.close()
            del engine
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
    return {**head, "rows": rows}


def _head(engine: Engine, device: torch.device, start_s: float, bandwidth: float) -> dict[str, Any]:
    return {
        "start_s": start_s,
        "device": engine.info.device if device.type == "cuda" else _processor(),
        "threads": torch.get_num_threads(),
        "dtype": engine.info.dtype,
        "weight_bytes": engine.info.weight_bytes,
        "copy_bandwidth_bytes_s": bandwidth,
        "versions": {"python": platform.python_version(), "torch": torch.__version__, **_versions()},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("octavo", "triton", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _line(row: dict[str, Any]) -> str:
    off = [name for name in COMPARABLE if row[name] is False]
    return (
        f"{row['workload']:<18} {row['out_tok_s']:>10,.1f} out tok/s  {row['decode_tok_s']:>10,.1f} decode  "
        f"{row['prompt_tok_s']:>10,.0f} prompt  ttft {row['ttft_p50_ms']:>8,.1f} ms  itl {row['itl_p50_ms']:>7,.2f} ms"
        + (f"  plain {row['plain_out_tok_s']:,.1f}" if "plain_out_tok_s" in row else "")
        + (f"  without {', '.join(off)}" if off else "")
    )


def _positive(text: str) -> int:
    """A flag's whole number above 0; argparse makes a sentence of the ValueError."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def _share(text: str) -> float:
    """A flag's number from 0 to 1."""
    if not 0 <= (number := float(text)) <= 1:
        raise argparse.ArgumentTypeError(f"must be from 0 to 1, not {text}")
    return number


def _require_writable(path: Path) -> None:
    """Refuses a file for the results before anything is measured for it; what it holds stays until then."""
    try:
        with path.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        reason = error.strerror or error
        raise RequestError(f"{path} cannot be written ({reason}).", remedy="Give --json another path.") from error


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code (0 fine, 1 failed, 2 wrong flags)."""
    data = benchmark_data()
    parser = argparse.ArgumentParser(
        prog="octavo bench",
        description="Measure the engine on fixed workloads.",
        epilog="Shapes, which are models with random weights: " + ", ".join(data["shapes"]) + ".",
    )
    parser.add_argument(
        "--model", default="shape:qwen-0.5b", help="a folder, a .gguf file, or shape:NAME (default: %(default)s)"
    )
    names = ", ".join(entry["name"] for entry in data["workloads"])
    parser.add_argument(
        "--workload",
        default="single-stream",
        help=f"one or more of {names}, separated by commas (default: %(default)s)",
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument(
        "--quantization",
        default="none",
        choices=sorted({*FORMATS, *MIXES}),
        help="a value of model.quantization; for random weights also GGUF's q4_0, q4_k_m, q5_k_m or q8_0",
    )
    parser.add_argument("--quantize-head", action="store_true", help="convert the output head too")
    parser.add_argument(
        "--kv-cache-dtype", "--kv-dtype", default="auto", choices=["auto", *KV_DTYPES], help="format of cached chats"
    )
    parser.add_argument("--speculation", default="off", choices=["off", "ngram", "draft", "self", "auto"])
    parser.add_argument("--forced-acceptance", type=_share, help="guess from a recording, right so often (0 to 1)")
    parser.add_argument(
        "--draft-tokens", type=_positive, default=EngineConfig().draft_tokens, help="guesses a step at most"
    )
    parser.add_argument("--draft-model", help="folder or .gguf file of the model that guesses for draft and auto")
    parser.add_argument("--compare", default="", help=f"settings to switch off in turn: {', '.join(COMPARABLE)}")
    parser.add_argument("--repetitions", type=_positive, default=REPETITIONS, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--debug", action="store_true", help="log what the engine decides; show traces")
    flags = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO if flags.debug else logging.WARNING, stream=sys.stderr)
    try:
        workloads = find_workloads([name for name in flags.workload.split(",") if name])
        if flags.speculation == "draft" and flags.draft_model is None:
            raise RequestError("--speculation draft needs a model that guesses.", remedy="Name it: --draft-model PATH.")
        if flags.json is not None:
            _require_writable(flags.json)
        config = EngineConfig(
            device=flags.device,
            dtype=flags.dtype,
            quantization=flags.quantization,
            quantize_head=flags.quantize_head,
            kv_cache_dtype=flags.kv_cache_dtype,
            speculation=flags.speculation,
            draft_model=flags.draft_model,
            draft_tokens=flags.draft_tokens,
        )
        compare = [name for name in flags.compare.split(",") if name]
        result = bench(flags.model, workloads, config, compare, flags.repetitions, flags.forced_acceptance)
    except OctavoError as error:
        if flags.debug:
            raise
        print(f"octavo bench: {error}", file=sys.stderr)
        return 2 if isinstance(error, RequestError | DeviceError) else 1
    text = json.dumps(result, indent=1)
    if flags.json:
        flags.json.write_text(text + "\n", encoding="utf-8")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
