"""Figures once a second, kept for the last minutes: what the plots of the monitor are drawn from."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

import psutil

from octavo.app.host import ModelHost
from octavo.app.monitor.gpu import GpuMeter

if TYPE_CHECKING:
    from octavo.engine.engine import Engine

log = logging.getLogger(__name__)

EVERY_S = 1.0
KEPT = 600  # ten minutes


@dataclass(frozen=True, slots=True)
class Sample:
    """The second up to `at_s` (seconds since the epoch). What nothing happened for is None: no prompt, no drafts."""

    at_s: float
    generated_tok_s: float = 0.0
    prompt_tok_s: float = 0.0
    computed_prompt_tok_s: float = 0.0
    running: int = 0
    waiting: int = 0
    pages_used: int = 0
    pages_shared: int = 0
    pages_cached: int = 0
    pages_free: int = 0
    hit_share: float | None = None
    accepted_share: float | None = None
    preemptions: int = 0
    process_bytes: int = 0
    processor_share: float = 0.0
    gpu_used_bytes: int | None = None
    gpu_load: float | None = None


COLUMNS = tuple(field.name for field in fields(Sample))


class Sampler:
    """Looks at the host in a thread of its own; any thread may read."""

    def __init__(self, host: ModelHost, *, every_s: float = EVERY_S) -> None:
        self._host = host
        self._every_s = every_s
        self._samples: deque[Sample] = deque(maxlen=KEPT)
        self._last: tuple[Engine, float, dict[str, int]] | None = None
        self._gpu = GpuMeter()
        self._process = psutil.Process()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._process.cpu_percent()  # the first call only sets the mark
        self._thread = threading.Thread(target=self._run, name="octavo-monitor", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._gpu.close()

    def since(self, at_s: float = 0.0) -> list[Sample]:
        """The samples after that time, oldest first."""
        return [sample for sample in tuple(self._samples) if sample.at_s > at_s]

    def look(self) -> Sample:
        """Takes one sample now and keeps it."""
        now_s, moment = time.time(), time.monotonic()
        values: dict[str, float | int | None] = {
            "process_bytes": self._process.memory_info().rss,
            "processor_share": self._process.cpu_percent() / 100 / (psutil.cpu_count() or 1),
        }
        engine = self._host.engine
        if engine is None:
            self._last = None
        else:
            values |= self._of_engine(engine, moment)
            reading = self._gpu.read(engine.info.device)
            if reading is not None:
                values |= {"gpu_used_bytes": reading.used_bytes, "gpu_load": reading.load}
        sample = Sample(now_s, **values)  # type: ignore[arg-type]
        self._samples.append(sample)
        return sample

    def gpu(self) -> dict[str, object] | None:
        """The GPU now, with what does not go into the plots."""
        engine = self._host.engine
        reading = None if engine is None else self._gpu.read(engine.info.device)
        return None if reading is None else asdict(reading)

    def _of_engine(self, engine: Engine, moment: float) -> dict[str, float | int | None]:
        status = engine.status()
        last, self._last = self._last, (engine, moment, status.counters)
        values: dict[str, float | int | None] = {name: status.requests.get(name, 0) for name in ("running", "waiting")}
        values |= {f"pages_{name}": status.pages.get(name, 0) for name in ("used", "shared", "cached", "free")}
        if last is None or last[0] is not engine:
            return values
        passed_s = max(1e-3, moment - last[1])

        def grown(name: str) -> int:
            return max(0, status.counters.get(name, 0) - last[2].get(name, 0))

        prompt, cached, drafts = grown("prompt_tokens"), grown("cached_prompt_tokens"), grown("draft_tokens")
        values |= {
            "generated_tok_s": grown("generated_tokens") / passed_s,
            "prompt_tok_s": prompt / passed_s,
            "computed_prompt_tok_s": max(0, prompt - cached) / passed_s,
            "hit_share": cached / prompt if prompt else None,
            "accepted_share": grown("accepted_tokens") / drafts if drafts else None,
            "preemptions": grown("preemptions"),
        }
        return values

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            try:
                self.look()
            except Exception:  # a second without figures is no reason to stop looking
                log.debug("A look at the figures failed", exc_info=True)
