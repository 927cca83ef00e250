"""How "auto" becomes a value, and what is refused."""

from __future__ import annotations

import logging

import pytest
import torch

from octavo.engine.attention.base import CacheGroup, Plane
from octavo.engine.config import EngineConfig
from octavo.engine.errors import DeviceError, MemoryExhaustedError
from octavo.engine.run import resolve

CPU = torch.device("cpu")
MIB = 1 << 20


def group(window: int | None = None, layers: int = 4) -> CacheGroup:
    """64 KiB for 16 tokens in float32: 4 layers x 2 planes x 2 heads x 64."""
    planes = (Plane("k", 2, 64), Plane("v", 2, 64))
    return CacheGroup("g", tuple(range(layers)), planes, window)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "free_memory", lambda device: 1024 * MIB)


def test_cuda_by_name_without_a_gpu_is_an_error_and_auto_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="cuda was asked for"):
        resolve.resolve_device("cuda")
    device, notice = resolve.resolve_device("auto")
    assert device == CPU
    assert notice is not None
    assert "CPU" in notice
    assert resolve.resolve_device("cpu") == (CPU, None)


@pytest.mark.parametrize(
    ("has_driver", "built_for", "reason"),
    [
        (False, None, "no NVIDIA driver was found"),
        (False, "13.0", "no NVIDIA driver was found"),
        (True, None, "is built without CUDA"),
        (True, "13.0", "offers no GPU that torch"),
    ],
)
def test_what_cuda_lacks_first_is_said(
    monkeypatch: pytest.MonkeyPatch, has_driver: bool, built_for: str | None, reason: str
) -> None:
    def open_library(name: str) -> None:
        if not has_driver:
            raise OSError(name)

    monkeypatch.setattr(resolve.ctypes, "CDLL", open_library)
    monkeypatch.setattr(torch.version, "cuda", built_for)
    assert reason in resolve.cuda_reason()


def test_a_device_number_that_is_not_there_names_how_many_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(DeviceError, match="no CUDA device 3; 1 were found"):
        resolve.resolve_device("cuda:3")


@pytest.mark.usefixtures("free")
def test_the_models_own_context_is_kept_while_one_chat_fits() -> None:
    size = resolve.resolve_cache(EngineConfig(), [group()], 8192, torch.float32, CPU)
    assert (size.context_length, size.page_size, size.notice) == (8192, 16, None)
    assert size.num_pages[0] * 64 * 1024 <= 256 * MIB


@pytest.mark.usefixtures("free")
def test_a_context_that_does_not_fit_is_cut_with_a_notice() -> None:
    config = EngineConfig(kv_memory_bytes=8 * MIB)
    size = resolve.resolve_cache(config, [group()], 8192, torch.float32, CPU)
    assert size.context_length == (128 - 2) * 16
    assert "cut from 8192 to 2016" in (size.notice or "")
    assert (size.num_pages[0] - 1) * 16 >= size.context_length


@pytest.mark.usefixtures("free")
def test_a_context_beyond_the_models_own_is_cut_with_a_notice(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        size = resolve.resolve_cache(EngineConfig(context_length=9000), [group()], 4096, torch.float32, CPU)
    assert size.context_length == 4096
    assert "9000" in (size.notice or "")
    assert size.notice in caplog.text


@pytest.mark.usefixtures("free")
def test_memory_that_holds_no_chat_is_refused_with_the_setting_to_change() -> None:
    with pytest.raises(MemoryExhaustedError, match=r"engine\.kv_memory"):
        resolve.resolve_cache(EngineConfig(kv_memory_bytes=100_000), [group()], 4096, torch.float32, CPU)
    with pytest.raises(MemoryExhaustedError, match=r"1\.00 are free"):
        resolve.resolve_cache(EngineConfig(kv_memory_bytes=2048 * MIB), [group()], 4096, torch.float32, CPU)


@pytest.mark.usefixtures("free")
def test_without_paging_the_page_is_the_whole_context_and_slots_are_what_memory_holds() -> None:
    config = EngineConfig(paged_attention=False, kv_memory_bytes=64 * MIB, context_length=2048)
    size = resolve.resolve_cache(config, [group()], 8192, torch.float32, CPU)
    assert size.page_size == size.context_length == 2048
    assert size.num_pages[0] - 1 == 64 // 8 - 1


@pytest.mark.usefixtures("free")
def test_a_windowed_group_gets_fewer_pages_than_a_full_one() -> None:
    config = EngineConfig(kv_memory_bytes=128 * MIB, prefill_chunk=256)
    full, windowed = resolve.resolve_cache(config, [group(), group(512)], 8192, torch.float32, CPU).num_pages
    assert windowed < full / 2
    assert (windowed - 1) * 16 >= 512 + 256


@pytest.mark.usefixtures("free")
@pytest.mark.parametrize("kv", ["int8", "fp8"])
def test_the_same_memory_holds_nearly_twice_the_pages_of_8_bit_codes_as_of_16_bit(kv: str) -> None:
    config = EngineConfig(kv_memory_bytes=64 * MIB)
    kv_dtype = resolve.resolve_kv_dtype(kv, torch.bfloat16)
    plain, small = (
        resolve.resolve_cache(config, [group()], 4096, dtype, CPU).num_pages[0] for dtype in (torch.bfloat16, kv_dtype)
    )
    dim = group().planes[0].dim
    assert small / plain == pytest.approx(2 * dim / (dim + 4), rel=0.01)
    assert resolve.kv_dtype_name(kv_dtype) == kv
    assert resolve.resolve_kv_dtype("auto", torch.float16) == torch.float16
    assert "8-bit" in (resolve.kv_dtype_notice(kv_dtype, CPU) or "")
    assert resolve.kv_dtype_notice(kv_dtype, torch.device("cuda")) is None
    assert resolve.kv_dtype_notice(torch.bfloat16, CPU) is None


def test_the_chunk_is_what_was_asked_for_or_the_devices_own() -> None:
    assert resolve.resolve_chunk(64, CPU) == 64
    assert resolve.resolve_chunk(None, CPU) == 512


def test_a_claimed_context_is_bounded_by_the_memory_before_the_model_is_built() -> None:
    assert resolve.bound_context(8192, 1 << 30) == 8192
    assert resolve.bound_context(2**31 - 1, 1 << 30) == 1 << 19


def test_a_gpu_with_room_holds_every_running_chat_and_keeps_half_free(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda")
    monkeypatch.setattr(resolve, "free_memory", lambda device: 64 << 30)
    per_token = resolve.page_bytes(group(), 1, torch.float16)
    held = resolve.resolve_cache(EngineConfig(max_running=64), [group()], 4096, torch.float16, cuda).num_pages[0]
    assert held * 16 >= 64 * 4096
    assert held * 16 * per_token <= 32 << 30
    many = resolve.resolve_cache(EngineConfig(max_running=10**6), [group()], 4096, torch.float16, cuda).num_pages[0]
    assert many * 16 * per_token <= 32 << 30
