"""Downloads that people start, pause and take up again: one after the other, remembered over restarts.

A job that was running when Octavo ended is paused afterwards: nothing is fetched unless somebody says so.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from octavo.app.config.files import write_atomically
from octavo.app.library.errors import FetchCancelledError, LibraryError, OfflineError
from octavo.app.library.hub import FetchPlan, plan_fetch, probe
from octavo.app.library.progress import DOWNLOADING
from octavo.app.library.repository import RemoteFile
from octavo.engine.errors import OctavoError

log = logging.getLogger(__name__)

JobState = Literal["waiting", "running", "paused", "failed", "done"]

TOLD_EVERY_S = 0.2
SPEED_OVER_S = 6.0  # the speed that is shown is the mean of so long
REMEMBERED = 4  # finished jobs that stay in the list when a new one comes


@dataclass(frozen=True, slots=True)
class Job:
    """One model's download. Sizes in bytes; `total` is 0 until the hub has said it. `reason` is AccessError's, or
    "offline"."""

    id: str
    model_id: str  # org/name or org/name:Q4_K_M
    revision: str
    state: JobState
    total: int = 0
    done: int = 0
    stage: str = DOWNLOADING
    speed: float = 0.0  # bytes a second
    error: str | None = None
    reason: str | None = None
    commit: str | None = None  # what the revision was when the job began
    files: tuple[RemoteFile, ...] = ()  # what it consists of, as the hub said then
    load_when_done: bool = False
    quantization: str | None = None  # with which it is loaded then

    def plan(self, cache: Path | None) -> FetchPlan | None:
        """What is to be fetched, without asking the hub again; None for a job that never began."""
        if self.commit is None:
            return None
        repo_id, _, variant = self.model_id.partition(":")
        return FetchPlan(repo_id, variant or None, self.revision, self.commit, self.files, cache)

    @property
    def seconds_left(self) -> float | None:
        if self.state != "running" or self.speed <= 0 or self.total <= self.done:
            return None
        return (self.total - self.done) / self.speed


@dataclass(slots=True)
class _Speed:
    """Mean over the last seconds."""

    seen: deque[tuple[float, int]] = field(default_factory=deque)

    def of(self, done: int) -> float:
        now = time.monotonic()
        if self.seen and done < self.seen[-1][1]:  # a file begun anew
            self.seen.clear()
        self.seen.append((now, done))
        while now - self.seen[0][0] > SPEED_OVER_S and len(self.seen) > 2:
            self.seen.popleft()
        elapsed = now - self.seen[0][0]
        return (done - self.seen[0][1]) / elapsed if elapsed > 0.2 else 0.0


class Downloads:
    """The list of jobs and the one thread that works on it. Safe to use from any thread.

    `file` keeps the list; `when_done(job)` is called in the thread when a model is complete.
    """

    def __init__(
        self,
        file: Path | None,
        *,
        when_done: Callable[[Job], None] = lambda job: None,
        cache: Path | None = None,
        plan: Callable[..., FetchPlan] = plan_fetch,
    ) -> None:
        self._file, self._cache, self._plan, self._when_done = file, cache, plan, when_done
        self._condition = threading.Condition()
        self._jobs: dict[str, Job] = {}
        self._stop: str | None = None  # the job that is to end now
        self._at_work: str | None = None
        self._closed = False
        self._listeners: list[Callable[[], None]] = []
        self._told_s = 0.0
        self._thread: threading.Thread | None = None
        self._read()

    def jobs(self) -> tuple[Job, ...]:
        """In the order they were asked for."""
        with self._condition:
            return tuple(self._jobs.values())

    def find(self, job_id: str) -> Job:
        """Raises LibraryError if there is no such job."""
        with self._condition:
            if job_id not in self._jobs:
                raise LibraryError("This download is not in the list any more.", remedy="Start it again.")
            return self._jobs[job_id]

    def add(
        self, model_id: str, revision: str = "main", *, load_when_done: bool = False, quantization: str | None = None
    ) -> Job:
        """Queue a model's download; one that is in the list already is taken up again instead."""
        with self._condition:
            for job in self._jobs.values():
                if (job.model_id, job.revision) == (model_id, revision) and job.state != "done":
                    if load_when_done:
                        self._change(job.id, load_when_done=True, quantization=quantization)
                    return self.resume(job.id)
            self._forget_old()
            job = Job(
                uuid.uuid4().hex[:12],
                model_id,
                revision,
                "waiting",
                load_when_done=load_when_done,
                quantization=quantization,
            )
            self._jobs[job.id] = job
            self._changed()
            self._work()
            return job

    def pause(self, job_id: str) -> Job:
        """Stop a job; what has come stays."""
        with self._condition:
            job = self.find(job_id)
            if job.state in ("waiting", "running"):
                self._stop = job_id if self._at_work == job_id else self._stop
                self._change(job_id, state="paused", speed=0.0)
            return self._jobs[job_id]

    def resume(self, job_id: str) -> Job:
        """Go on with a paused or failed job."""
        with self._condition:
            job = self.find(job_id)
            if job.state in ("paused", "failed"):
                self._change(job_id, state="waiting", error=None, reason=None)
                self._work()
            return self._jobs[job_id]

    def remove(self, job_id: str) -> None:
        """Take a job off the list; the parts of an unfinished one are deleted."""
        job = self.find(job_id)
        self.pause(job_id)
        with self._condition:
            self._condition.wait_for(lambda: self._at_work != job_id, 20)
            self._jobs.pop(job_id, None)
            self._changed()
        plan = job.plan(self._cache)
        if plan is not None and job.state != "done":
            plan.discard()

    def add_listener(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after changes, from whatever thread made them. Returns its removal."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def close(self) -> None:
        """Stop working; a running job is paused and remembered as such."""
        with self._condition:
            self._closed = True
            if self._at_work is not None:
                self._stop = self._at_work
                self._change(self._at_work, state="paused", speed=0.0)
            self._condition.notify_all()
        if self._thread is not None:
            self._thread.join(5)

    # The thread

    def _work(self) -> None:
        if self._closed:
            return
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="octavo-downloads", daemon=True)
            self._thread.start()
        self._condition.notify_all()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._at_work = None
                self._condition.notify_all()
                if self._closed:
                    return
                job = next((job for job in self._jobs.values() if job.state == "waiting"), None)
                if job is None:
                    self._thread = None
                    return
                self._at_work, self._stop = job.id, None
                self._change(job.id, state="running", stage=DOWNLOADING)
            self._do(job)

    def _do(self, job: Job) -> None:
        try:
            plan = self._begin(job)
            speed = _Speed()

            def progress(stage: str, done: int, total: int, source: str) -> None:
                now = (
                    {"stage": stage, "speed": speed.of(done)}
                    if stage == DOWNLOADING
                    else {"stage": stage, "speed": 0.0}
                )
                self._update(job.id, seldom=True, **({"done": done} if stage == DOWNLOADING else {}), **now)

            plan.run(progress, lambda: self._stop == job.id)
        except FetchCancelledError:
            return
        except OctavoError as error:
            log.warning("Fetching %s failed: %s", job.model_id, error)
            reason = "offline" if isinstance(error, OfflineError) else getattr(error, "reason", None)
            self._update(job.id, state="failed", speed=0.0, error=str(error), reason=reason)
            return
        except Exception as error:  # a fault of ours or of a library: the list must outlive it
            log.exception("Fetching %s failed", job.model_id)
            text = f"The download failed unexpectedly ({type(error).__name__}). The log has the details."
            self._update(job.id, state="failed", speed=0.0, error=text)
            return
        self._update(job.id, state="done", speed=0.0, done=plan.total_bytes, stage=DOWNLOADING)
        finished = self._jobs.get(job.id)
        if finished is not None and finished.state == "done":
            self._when_done(finished)

    def _begin(self, job: Job) -> FetchPlan:
        repo_id, _, variant = job.model_id.partition(":")
        plan = job.plan(self._cache)
        if plan is None or plan.there_bytes() < plan.total_bytes:
            probe(f"{job.model_id} is not fetched.")
        if plan is None:
            plan = self._plan(repo_id, variant or None, revision=job.revision, cache=self._cache)
        self._update(job.id, commit=plan.commit, files=plan.files, total=plan.total_bytes, done=plan.there_bytes())
        return plan

    def _update(self, job_id: str, *, seldom: bool = False, **changes: Any) -> None:
        """What the thread found; without effect on a job that was paused or removed meanwhile."""
        with self._condition:
            job = self._jobs.get(job_id)
            if job is None or job.state != "running":
                return
            if not seldom:
                self._change(job_id, **changes)
                return
            self._jobs[job_id] = replace(job, **changes)
            if time.monotonic() - self._told_s >= TOLD_EVERY_S:
                self._tell()

    # Under the lock

    def _change(self, job_id: str, **changes: Any) -> None:
        self._jobs[job_id] = replace(self._jobs[job_id], **changes)
        self._changed()

    def _changed(self) -> None:
        self._write()
        self._tell()

    def _tell(self) -> None:
        self._told_s = time.monotonic()
        self._condition.notify_all()
        for listener in tuple(self._listeners):
            try:
                listener()
            except Exception:  # such as an event loop that has ended
                log.debug("A listener of the downloads failed", exc_info=True)

    def _forget_old(self) -> None:
        finished = [job.id for job in self._jobs.values() if job.state == "done"]
        for job_id in finished[: max(0, len(finished) - REMEMBERED)]:
            del self._jobs[job_id]

    # The file

    def _write(self) -> None:
        if self._file is None:
            return
        kept = [asdict(job) for job in self._jobs.values()]
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._file, json.dumps({"jobs": kept}, indent=1).encode("utf-8"))
        except OSError as error:
            log.warning("The list of downloads cannot be kept (%s).", error.strerror or error)

    def _read(self) -> None:
        if self._file is None or not self._file.is_file():
            return
        try:
            kept = json.loads(self._file.read_text(encoding="utf-8"))["jobs"]
            for fields in kept:
                known = {name: fields[name] for name in Job.__dataclass_fields__ if name in fields}
                job = Job(**{**known, "files": tuple(RemoteFile(**file) for file in fields.get("files", ()))})
                plan = job.plan(self._cache)
                self._jobs[job.id] = replace(
                    job,
                    state="paused" if job.state in ("waiting", "running") else job.state,
                    done=job.done if plan is None else plan.there_bytes(),
                    speed=0.0,
                )
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("The list of downloads cannot be read (%s); it begins anew.", error)
