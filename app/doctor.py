"""`octavo doctor`: looks at machine and installation, and says what to do about what is wrong."""

from __future__ import annotations

import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path
from typing import Literal

from octavo.app import paths
from octavo.app.config import ConfigError, format_size, load_settings
from octavo.app.hardware import Hardware, look
from octavo.app.version import octavo_version, version_of

Verdict = Literal["ok", "note", "wrong"]
MARKS: dict[Verdict, str] = {"ok": "ok   ", "note": "note ", "wrong": "WRONG"}
CUDA_TORCH_HINT = "Install a CUDA build of torch (README, section A CUDA GPU)."


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. A note costs speed or comfort; what is wrong stops Octavo from working."""

    verdict: Verdict
    subject: str
    text: str

    def __str__(self) -> str:
        return f"{MARKS[self.verdict]}  {self.subject:<12}  {self.text}"


def doctor(config: Path | None = None) -> int:
    """Prints every finding, and what a running Octavo says of itself; returns 1 if something is wrong."""
    worst = 0
    for finding in findings(config):
        print(finding, flush=True)
        worst = max(worst, int(finding.verdict == "wrong"))
    for finding in _running(_data_folder(config)):
        print(finding, flush=True)
    return worst


def findings(config: Path | None = None) -> Iterator[Finding]:
    """Everything that can be seen of machine and installation, one by one as it is looked at."""
    hardware = look()
    checks: list[Callable[[], Iterator[Finding]]] = [
        _system,
        lambda: _machine(hardware),
        lambda: _torch(hardware),
        _triton,
        lambda: _configuration(config),
        lambda: _folders(_data_folder(config)),
        _starter,
    ]
    for check in checks:
        yield from check()


def _data_folder(config: Path | None) -> Path:
    try:
        return paths.data_dir(load_settings(config).values.app.data_folder)
    except ConfigError:
        return paths.data_dir()


def _running(data: Path) -> Iterator[Finding]:
    """The facts of the Octavo that runs on this data folder, if one does."""
    from octavo.app.instance import InstanceLock
    from octavo.app.monitor.facts import facts_of, fetch_status

    running = InstanceLock(data).running()
    if running is None:
        return
    status = fetch_status(running.url)
    if status is None:
        yield Finding("note", "running", f"process {running.pid} should answer at {running.url}, but does not.")
        return
    yield Finding("ok", "running", f"process {running.pid} at {running.url}")
    for subject, text in facts_of(status):
        yield Finding("note" if subject in ("error", "notice") else "ok", subject, text)


def _system() -> Iterator[Finding]:
    yield Finding("ok", "octavo", f"{octavo_version()} on Python {platform.python_version()}, {platform.platform()}")
    if sys.platform == "darwin":
        yield Finding("note", "system", "macOS is not supported; only the CPU is used, and nothing was tried there.")


def _machine(hardware: Hardware) -> Iterator[Finding]:
    memory = f"{format_size(hardware.free_bytes)} of {format_size(hardware.total_bytes)} free"
    yield Finding("ok", "processor", f"{hardware.processor}, {hardware.cores} cores, {memory}")
    for gpu in hardware.gpus:
        yield Finding("ok", "gpu", f"{gpu} (driver {hardware.driver})")
    if hardware.gpu_problem:
        yield Finding("note", "gpu", f"{hardware.gpu_problem}; models run on the CPU.")


def _torch(hardware: Hardware) -> Iterator[Finding]:
    try:
        import torch
    except (ImportError, OSError) as error:
        yield Finding("wrong", "torch", f"cannot be imported ({error}). Install it anew.")
        return
    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    yield Finding("ok", "torch", f"{torch.__version__}, {built}, {torch.get_num_threads()} threads")
    if hardware.gpus and torch.version.cuda is None:
        yield Finding("note", "torch", f"it cannot use the GPU that is there. {CUDA_TORCH_HINT}")
    elif hardware.gpus and not torch.cuda.is_available():
        yield Finding(
            "note", "torch", "it does not see the GPU; is the driver new enough, is CUDA_VISIBLE_DEVICES set?"
        )
    yield Finding("ok", "transformers", version_of("transformers"))


def _triton() -> Iterator[Finding]:
    name = "triton-windows" if sys.platform == "win32" else "triton"
    found = version_of(name)
    if found == "not installed":
        yield Finding("note", "triton", f"{name} is not installed; on a GPU fused kernels are off. pip install {name}")
        return
    needed = _needed_by_torch()
    if needed and not found.startswith(needed):
        yield Finding("note", "triton", f"{found} is not what this torch wants ({needed}); kernels may be off.")
        return
    yield Finding("ok", "triton", found)


def _needed_by_torch() -> str | None:
    """The major and minor version of Triton that the installed torch declares."""
    for line in requires("torch") or ():
        match = re.match(r"triton\s*(?:==|~=|>=)\s*(\d+\.\d+)", line)
        if match:
            return match[1]
    return None


def _configuration(config: Path | None) -> Iterator[Finding]:
    try:
        settings = load_settings(config)
    except ConfigError as error:
        for problem in error.problems:
            yield Finding("wrong", "config", str(problem))
        return
    state = str(settings.path) if settings.path.exists() else f"{settings.path} is not there yet; defaults are used"
    yield Finding("ok", "config", state)


def _folders(data: Path) -> Iterator[Finding]:
    for subject, folder in (("data", data), ("cache", paths.cache_dir()), ("log", paths.log_dir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = folder / ".octavo-probe"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            yield Finding("wrong", subject, f"{folder} cannot be written ({error.strerror or error}).")
            continue
        free = shutil.disk_usage(folder).free
        verdict: Verdict = "ok" if free > 2**30 else "note"
        yield Finding(verdict, subject, f"{folder}, {format_size(free)} free")


def _starter() -> Iterator[Finding]:
    from octavo.app.library import LibraryError, find_starter

    try:
        path = find_starter()
    except LibraryError as error:
        yield Finding("wrong", "starter", str(error))
        return
    yield Finding("ok", "starter", str(path) if path else "not on disk; it is fetched when it is first needed")
