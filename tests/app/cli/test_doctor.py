"""What is said of a machine's hardware and libraries, whatever machine the tests run on."""

from __future__ import annotations

import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pynvml
import pytest

from octavo.app import doctor, hardware
from octavo.app.hardware import Gpu, Hardware

if TYPE_CHECKING:
    from tests.app.cli.conftest import Result

Octavo = Callable[..., "Result"]
GPU = Gpu(0, "NVIDIA Test 9000", 24 * 2**30, 6 * 2**30)


def machine(*gpus: Gpu, problem: str | None = None) -> Hardware:
    return Hardware("a processor", 8, 32 * 2**30, 16 * 2**30, gpus, "600.1" if gpus else None, problem)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A driver whose library answers what is put in here; an exception is raised by the first call."""
    answers: dict[str, Any] = {"gpus": [], "error": None}

    def start() -> None:
        if answers["error"]:
            raise answers["error"]

    def memory(index: int) -> types.SimpleNamespace:
        return types.SimpleNamespace(total=answers["gpus"][index][1], free=answers["gpus"][index][2])

    monkeypatch.setattr(pynvml, "nvmlInit", start)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", lambda: "600.1")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: len(answers["gpus"]))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda index: answers["gpus"][index][0])
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", memory)
    return answers


def test_the_gpus_are_those_the_driver_knows(driver: dict[str, Any]) -> None:
    driver["gpus"] = [("Big", 24 * 2**30, 20 * 2**30), ("Small", 8 * 2**30, 2**30)]
    found = hardware.look()
    assert [str(gpu) for gpu in found.gpus] == [
        "GPU 0: Big, 20.0 GiB of 24.0 GiB free",
        "GPU 1: Small, 1.0 GiB of 8.0 GiB free",
    ]
    assert (found.driver, found.gpu_problem) == ("600.1", None)
    assert found.total_bytes >= found.free_bytes > 0
    assert found.cores >= 1


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND), "no NVIDIA driver was found"),
        (pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED), "the NVIDIA driver does not answer"),
        (None, "the NVIDIA driver knows no GPU"),
    ],
)
def test_a_missing_gpu_has_a_reason(driver: dict[str, Any], error: Exception | None, problem: str) -> None:
    driver["error"] = error
    found = hardware.look()
    assert found.gpus == ()
    assert (found.gpu_problem or "").startswith(problem)


def test_a_gpu_that_torch_cannot_use_is_noted_with_the_remedy(octavo: Octavo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "look", lambda: machine(GPU))
    monkeypatch.setattr("torch.version.cuda", None)
    result = octavo("doctor")
    assert result.code == 0  # it works, on the CPU
    assert "NVIDIA Test 9000, 6.0 GiB of 24.0 GiB free (driver 600.1)" in result.out
    assert "it cannot use the GPU that is there. Install a CUDA build of torch" in result.out
    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "it does not see the GPU" in octavo("doctor").out


def test_a_machine_without_a_gpu_is_fine(octavo: Octavo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "look", lambda: machine(problem="no NVIDIA driver was found"))
    result = octavo("doctor")
    assert result.code == 0
    assert "no NVIDIA driver was found; models run on the CPU." in result.out


@pytest.mark.parametrize(
    ("installed", "wanted", "said"),
    [
        ("3.9.0", "3.9", "ok"),
        ("3.6.0", "3.9", "3.6.0 is not what this torch wants (3.9)"),
        ("not installed", None, "is not installed"),
        ("3.9.0", None, "ok"),
    ],
)
def test_triton_must_fit_torch(monkeypatch: pytest.MonkeyPatch, installed: str, wanted: str | None, said: str) -> None:
    monkeypatch.setattr(doctor, "version_of", lambda name: installed)
    monkeypatch.setattr(doctor, "_needed_by_torch", lambda: wanted)
    [finding] = doctor._triton()
    assert said in str(finding)
    assert (finding.verdict == "ok") is (said == "ok")


def test_what_torch_declares_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "requires", lambda name: ["filelock", "triton==3.9.1; platform_system == 'Linux'"])
    assert doctor._needed_by_torch() == "3.9"
    monkeypatch.setattr(doctor, "requires", lambda name: None)
    assert doctor._needed_by_torch() is None


def test_a_folder_that_cannot_be_written_and_a_starter_that_is_gone_are_wrong(
    octavo: Octavo, own_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own_folders / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("OCTAVO_DATA_DIR", str(own_folders / "file" / "data"))
    monkeypatch.setenv("OCTAVO_STARTER", str(own_folders / "gone.gguf"))
    result = octavo("doctor")
    assert result.code == 1
    wrong = [line for line in result.out.splitlines() if line.startswith("WRONG")]
    assert "cannot be written" in wrong[0]
    assert "OCTAVO_STARTER names" in wrong[1]
    assert len(wrong) == 2


def test_the_readme_has_the_section_that_is_named() -> None:
    named = re.search(r"README, section (.+)\)", doctor.CUDA_TORCH_HINT)
    assert named is not None
    readme = Path(__file__).parents[3].joinpath("README.md").read_text(encoding="utf-8")
    assert f"## {named[1]}\n" in readme


def test_what_a_running_octavo_warns_of_is_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    running = types.SimpleNamespace(pid=7, url="http://127.0.0.1:1")
    monkeypatch.setattr("octavo.app.instance.InstanceLock.running", lambda self: running)
    facts = [("state", "ready"), ("error", "No room."), ("notice", "On the CPU.")]
    monkeypatch.setattr("octavo.app.monitor.facts.fetch_status", lambda url: {})
    monkeypatch.setattr("octavo.app.monitor.facts.facts_of", lambda status: iter(facts))
    found = [(finding.verdict, finding.subject) for finding in doctor._running(tmp_path)]
    assert found == [("ok", "running"), ("ok", "state"), ("note", "error"), ("note", "notice")]
