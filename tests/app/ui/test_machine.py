"""What is suggested for which hardware."""

from __future__ import annotations

import pytest

from octavo.app.hardware import Gpu, Hardware
from octavo.app.library.suggestions import KEPT_FOR_CHATS_BYTES, suggest
from octavo.app.library.weights import quantizations
from octavo.app.ui.machine import describe

GIB = 1 << 30


def machine(memory_gib: float, *gpus_gib: float) -> Hardware:
    gpus = tuple(Gpu(n, "GPU", 24 * GIB, int(free * GIB)) for n, free in enumerate(gpus_gib))
    return Hardware("CPU", 8, int(memory_gib * GIB), int(memory_gib * GIB), gpus)


def test_suggestions_fit_what_is_free_and_the_largest_come_first() -> None:
    models = suggest(machine(64, 24))
    plain = [model for model in models if model.quantization == "none"]
    assert [model.id for model in plain][:3] == ["Qwen/Qwen3-8B", "Qwen/Qwen3-4B", "Qwen/Qwen3-1.7B"]
    assert all(model.size_bytes + KEPT_FOR_CHATS_BYTES < 24 * GIB for model in models)
    assert [model.parameters for model in models] == sorted((model.parameters for model in models), reverse=True)


@pytest.mark.parametrize("free_gib", [2, 4, 6, 8, 12, 16, 24, 48, 80, 140])
def test_every_gpu_and_every_machine_gets_two_to_four(free_gib: int) -> None:
    assert 2 <= len(suggest(machine(16, free_gib))) <= 4
    assert 2 <= len(suggest(machine(free_gib))) <= 4


def test_a_larger_model_that_fits_as_int4_stands_first_where_int4_exists() -> None:
    models = suggest(machine(64, 10))
    if "int4" in quantizations():
        assert (models[0].id, models[0].quantization) == ("Qwen/Qwen3-8B", "int4")
        assert models[0].size_bytes < models[0].download_bytes / 2
    assert models[-1].quantization == "none"


def test_without_a_gpu_no_model_is_suggested_that_would_crawl() -> None:
    assert suggest(machine(256))[0].id == "Qwen/Qwen3-1.7B"


def test_the_fullest_gpu_does_not_count_and_what_fits_nowhere_is_not_suggested() -> None:
    assert suggest(machine(64, 2, 24)) == suggest(machine(64, 24))
    assert suggest(machine(0.5)) == []
    assert [model.id for model in suggest(machine(1))] == ["HuggingFaceTB/SmolLM2-135M-Instruct"]


def test_this_machine_can_be_described() -> None:
    about = describe()
    assert about["cores"] >= 1
    assert 0 < about["free"] <= about["total"]
