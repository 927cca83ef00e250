"""What the Triton backend says it can serve; no kernel runs here."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from octavo.engine.attention import choose_backend
from octavo.engine.attention.base import AttnSpec
from octavo.engine.attention.triton_backend import TritonBackend
from octavo.kernels.decode_attention import decode_tile, wanted_programs
from octavo.kernels.device import DeviceTraits, as_device
from octavo.kernels.paged_attention import AttentionShape, prefill_tile

CUDA = torch.device("cuda")
HOPPER = DeviceTraits(capability=90, multiprocessors=132, shared_bytes=232448)
ADA = DeviceTraits(capability=89, multiprocessors=76, shared_bytes=101376)
TURING = DeviceTraits(capability=75, multiprocessors=40, shared_bytes=65536)
PASCAL = DeviceTraits(capability=61, multiprocessors=20, shared_bytes=49152)


def spec(dim: int = 128, heads: tuple[int, int] = (32, 8), v_dim: int | None = None) -> AttnSpec:
    return AttnSpec(q_heads=heads[0], kv_heads=heads[1], qk_dim=dim, v_dim=v_dim or dim, scale=0.1)


@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_usual_heads_and_types_are_served(dim, dtype):
    with as_device(HOPPER):
        assert TritonBackend().supports(spec(dim), dtype, CUDA) is None


@pytest.mark.parametrize(
    ("layer", "dtype", "device", "traits", "word"),
    [
        (spec(), torch.bfloat16, torch.device("cpu"), HOPPER, "cpu"),
        (spec(), torch.float64, CUDA, HOPPER, "float64"),
        (spec(512), torch.bfloat16, CUDA, HOPPER, "512"),
        (spec(64, v_dim=320), torch.bfloat16, CUDA, HOPPER, "320"),
        (spec(heads=(10, 4)), torch.bfloat16, CUDA, HOPPER, "grouped"),
        (spec(), torch.bfloat16, CUDA, TURING, "bfloat16"),
        (spec(), torch.float16, CUDA, PASCAL, "6.1"),
    ],
)
def test_what_is_not_served_is_said_in_one_sentence(layer, dtype, device, traits, word):
    with as_device(traits):
        reason = TritonBackend().supports(layer, dtype, device)
    assert reason is not None
    assert word in reason
    assert reason.endswith(".")


def test_a_device_before_tensor_cores_serves_half_precision():
    with as_device(TURING):
        assert TritonBackend().supports(spec(), torch.float16, CUDA) is None


def test_programs_are_enough_for_the_device_and_follow_its_size():
    layer = AttentionShape(32, 8, 128, 128, 0.1)
    assert wanted_programs(layer, HOPPER) >= 2 * HOPPER.multiprocessors
    assert wanted_programs(layer, ADA) < wanted_programs(layer, HOPPER)


def test_small_shared_memory_takes_small_tiles():
    layer = AttentionShape(32, 8, 128, 128, 0.1)
    large, small = (prefill_tile(layer, 4096, torch.bfloat16, traits) for traits in (HOPPER, ADA))
    assert large.m > small.m
    assert decode_tile(layer, torch.bfloat16, HOPPER, programs=8)[0].stages > 2
    assert decode_tile(layer, torch.bfloat16, ADA, programs=8)[0].stages == 2
    assert decode_tile(layer, torch.float32, HOPPER)[1] is False
    assert prefill_tile(layer, 2, torch.bfloat16, HOPPER).m < large.m


@pytest.mark.parametrize("traits", [HOPPER, ADA, TURING])
def test_8_bit_caches_are_served_on_every_generation_unless_the_head_size_is_odd(traits, caplog):
    for kv_dtype in (torch.int8, torch.float8_e4m3fn):
        with as_device(traits), caplog.at_level("INFO"):
            assert choose_backend(CUDA, torch.float16, [spec(80)], True, kv_dtype).name == "triton"
            assert choose_backend(CUDA, torch.float16, [spec(81)], True).name == "triton"
            assert choose_backend(CUDA, torch.float16, [spec(81)], True, kv_dtype).name == "torch"
        assert "pairs of channels" in caplog.text
