"""What is suggested for which hardware."""

from __future__ import annotations

from octavo.app.hardware import Gpu, Hardware
from octavo.app.ui.machine import KEPT_FOR_CHATS_BYTES, describe, suggest

GIB = 1 << 30


def machine(memory_gib: float, *gpus_gib: float) -> Hardware:
    gpus = tuple(Gpu(n, "GPU", 24 * GIB, int(free * GIB)) for n, free in enumerate(gpus_gib))
    return Hardware("CPU", 8, int(memory_gib * GIB), int(memory_gib * GIB), gpus)


def test_suggestions_fit_what_is_free_and_the_largest_come_first() -> None:
    models = suggest(machine(64, 24))
    assert [model.id for model in models] == ["Qwen/Qwen3-8B", "Qwen/Qwen3-4B", "Qwen/Qwen3-1.7B"]
    assert all(model.size_bytes + KEPT_FOR_CHATS_BYTES < 24 * GIB for model in models)


def test_without_a_gpu_no_model_is_suggested_that_would_crawl() -> None:
    assert suggest(machine(256))[0].id == "Qwen/Qwen3-1.7B"


def test_the_fullest_gpu_does_not_count_and_a_full_machine_gets_no_suggestion() -> None:
    assert suggest(machine(64, 2, 24)) == suggest(machine(64, 24))
    assert suggest(machine(1)) == []
    assert suggest(machine(64, 0.5)) == []


def test_this_machine_can_be_described() -> None:
    about = describe()
    assert about["cores"] >= 1
    assert 0 < about["free"] <= about["total"]
