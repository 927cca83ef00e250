"""What runs and how it is doing: /health for watchdogs, /metrics for Prometheus, /api/status for monitors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from octavo.app.host import ModelHost

if TYPE_CHECKING:
    from octavo.app.config import Settings

STUCK_S = 60.0  # an engine that has work and took no step for so long is stuck: a CPU's longest step is far shorter
PAGES = ("total", "free", "cached", "used", "shared", "page_size")
REQUESTS = ("running", "waiting", "swapped")
COUNTERS = {
    "steps": "Steps of the engine.",
    "prompt_tokens": "Prompt tokens of all requests.",
    "cached_prompt_tokens": "Prompt tokens that were not computed again.",
    "generated_tokens": "Tokens generated.",
    "draft_tokens": "Tokens guessed ahead.",
    "accepted_tokens": "Guessed tokens that were right.",
    "guess_cost_steps": "Steps without guesses that checking them took as long as, as estimated.",
    "preemptions": "Requests that had to give up their memory for a while.",
    "aborted": "Requests ended by their clients.",
    "failed": "Requests ended by an error.",
}

router = APIRouter()


def status(host: ModelHost, settings: Settings) -> dict[str, Any]:
    """The picture that /api/status shows; counts are 0 while no model is loaded, totals are those of all models since
    the start.

    `settings` holds config.yaml's sections (secrets as "set" or null) and beside them, by name, what the engine made
    of its own: "auto" resolved.
    """
    engine = host.engine
    progress = host.progress
    now = None if engine is None else engine.status()
    loading = None
    if progress is not None:
        loading = {
            "stage": progress.stage,
            "done": progress.done,
            "total": progress.total,
            "source": progress.source,
        }
    model: dict[str, Any] = {"id": host.model_id, "loading": loading, "error": host.error}
    model["notices"] = list(host.notices)
    model["chosen"] = dict(host.chosen) if engine is not None else {}
    if engine is not None:
        info = engine.info
        model |= {
            "name": info.name,
            "architecture": info.architecture,
            "format": info.format,
            "dtype": info.dtype,
            "device": info.device,
            "context_length": info.context_length,
            "vocab_size": info.vocab_size,
            "weight_bytes": info.weight_bytes,
            "kv_bytes": info.kv_bytes,
            "chat_bytes": info.chat_bytes,
            "kv_dtype": info.kv_dtype,
        }
    failed = now is not None and now.state == "failed"
    totals = host.tally.total()
    return {
        "state": "failed" if failed else host.state,
        "model": model,
        "pages": {name: 0 if now is None else now.pages.get(name, 0) for name in PAGES},
        "requests": {name: 0 if now is None else now.requests.get(name, 0) for name in REQUESTS},
        "counters": {name: 0 if now is None else now.counters.get(name, 0) for name in COUNTERS},
        "totals": {"since_s": host.tally.since_s, **{name: totals.get(name, 0) for name in COUNTERS}},
        "settings": {**({} if now is None else now.settings), **settings.public()},  # a section keeps its name
    }


def trouble(host: ModelHost) -> str | None:
    """Why nothing is answered although it should be, or None while all is well (idle and empty are well)."""
    engine = host.engine
    if host.state == "failed":
        return host.error
    if engine is None:
        return None
    now = engine.status()
    if now.state != "ready":
        return "The engine has failed; load the model again."
    if now.progress_s > STUCK_S:
        return f"The engine has made no progress for {now.progress_s:.0f} seconds."
    return None


@router.get("/api/status")
async def get_status(request: Request) -> dict[str, Any]:
    state = request.app.state
    return status(state.host, state.settings)


@router.get("/health")
async def get_health(request: Request) -> Response:
    """200 while the engine makes progress, is idle, is loading or empty; else 503 with the reason."""
    host: ModelHost = request.app.state.host
    reason = trouble(host)
    body = {"app": "octavo", "status": "ok" if reason is None else "failed", "state": host.state, "reason": reason}
    return JSONResponse(body, status_code=200 if reason is None else 503)


@router.get("/metrics")
async def get_metrics(request: Request) -> Response:
    """Counters of the loaded model (they begin anew with it), in Prometheus' text format."""
    registry: CollectorRegistry = request.app.state.metrics
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


def metrics_registry(host: ModelHost) -> CollectorRegistry:
    """A registry of our own: other libraries of the process have no say in it."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_EngineCollector(host))
    return registry


class _EngineCollector(Collector):
    """Reads the engine when somebody asks, so that nothing is counted twice."""

    def __init__(self, host: ModelHost) -> None:
        self._host = host

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        states = GaugeMetricFamily("octavo_state", "1 for the state the model is in.", labels=["state"])
        for state in ("empty", "loading", "ready", "unloading", "failed"):
            states.add_metric([state], float(self._host.state == state))
        yield states
        engine = self._host.engine
        if engine is None:
            return
        info, now = engine.info, engine.status()
        labels = {"name": info.name, "format": info.format, "dtype": info.dtype, "device": info.device}
        yield InfoMetricFamily("octavo_model", "The loaded model.", value=labels)
        requests = GaugeMetricFamily("octavo_requests", "Requests, by what they do.", labels=["state"])
        for name in REQUESTS:
            requests.add_metric([name], now.requests.get(name, 0))
        yield requests
        pages = GaugeMetricFamily("octavo_pages", "Pages of keys and values, by use.", labels=["use"])
        for name in PAGES[:-1]:
            pages.add_metric([name], now.pages.get(name, 0))
        yield pages
        for name, text in COUNTERS.items():
            yield CounterMetricFamily(f"octavo_{name}", text, value=now.counters.get(name, 0))
