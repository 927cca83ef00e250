"""What a run did to a model: the file octavo-quantize.json in its folder, and the table that is printed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from octavo.engine.quant.calibrate.settings import Settings

REPORT = "octavo-quantize.json"


def layer_row(index: int, error: float, linears: Mapping[str, float]) -> dict[str, Any]:
    """What is told of a layer: relative errors of what it adds to the stream, and of each linear's results."""
    return {
        "layer": index,
        "error": _short(error),
        "linears": {name: _short(value) for name, value in sorted(linears.items())},
    }


def _short(value: float) -> float:
    return float(f"{value:.4g}")


@dataclass(frozen=True, slots=True)
class Report:
    """Sizes in bytes; `perplexity` holds before, after and tokens, or nothing if it was not measured."""

    model: str
    settings: Settings
    stored: str
    text: str
    tokens: int
    window: int
    layers: tuple[Mapping[str, Any], ...]
    perplexity: Mapping[str, float]
    bytes_before: int
    bytes_after: int

    def as_json(self) -> dict[str, Any]:
        """Without times and paths: the same run writes the same file."""
        settings = self.settings
        method: dict[str, Any] = {
            "method": settings.method,
            "bits": settings.bits,
            "group_size": settings.group,
            "symmetric": settings.symmetric,
            "format": settings.file_format,
        }
        if settings.method == "gptq":
            method["act_order"] = settings.act_order
        if settings.method == "smoothquant":
            method["alpha"] = settings.alpha
        return {
            "model": self.model,
            **method,
            "dtype": self.stored,
            "calibration": {"text": self.text, "tokens": self.tokens, "window": self.window},
            "perplexity": {
                name: int(value) if name == "tokens" else _short(value) for name, value in self.perplexity.items()
            }
            or None,
            "bytes": {"before": self.bytes_before, "after": self.bytes_after},
            "layers": [dict(row) for row in self.layers],
        }

    def lines(self) -> Iterator[str]:
        """The report for people: a row a layer with its worst linear, then sizes and perplexity."""
        yield f"{'layer':>5}  {'error':>7}  worst linear"
        for row in self.layers:
            name, worst = max(row["linears"].items(), key=lambda item: item[1])
            short = ".".join(name.split(".")[-2:])
            yield f"{row['layer'] + 1:>5}  {row['error']:>7.2%}  {short} {worst:.2%}"
        before, after = self.bytes_before / (1 << 20), self.bytes_after / (1 << 20)
        yield f"size: {before:,.1f} MiB before, {after:,.1f} MiB after"
        if self.perplexity:
            one, two = self.perplexity["before"], self.perplexity["after"]
            tokens = int(self.perplexity["tokens"])
            yield f"perplexity on {tokens:,} tokens: {one:.3f} before, {two:.3f} after ({two / one - 1:+.1%})"
