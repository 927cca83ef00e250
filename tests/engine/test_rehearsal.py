"""What is compiled ahead of a model's first steps is what these steps then launch, to the key in Triton's cache."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")
import triton
from no_gpu import let_device_be_switched
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from triton.compiler import make_backend
from triton.runtime.cache import get_cache_key
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from octavo.engine import rehearsal
from octavo.engine.compiling import Recipe
from octavo.engine.config import EngineConfig
from octavo.engine.load.checkpoint import Checkpoint, TensorInfo
from octavo.engine.quant.blocks import block_format
from octavo.engine.run.mixed import MixedGraphs
from octavo.engine.run.runner import FIRST_GRAPHS
from octavo.kernels import activation
from octavo.kernels.compile_cases import TARGETS
from octavo.kernels.compile_jobs import CompileJob

pytestmark = pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1001,  # odd, as some vocabularies are
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}

MODE = FakeTensorMode()  # one for all tests: what kernels keep for a device is of it


@pytest.fixture(autouse=True)
def _rehearsing(monkeypatch: pytest.MonkeyPatch) -> None:
    if not isinstance(activation._gated_kernel, JITFunction):
        pytest.skip("kernels run in the interpreter")
    if torch.cuda.is_available():
        pytest.skip("this is for processes that see no GPU")
    let_device_be_switched()
    monkeypatch.setattr(rehearsal, "shape_config", lambda name: CONFIG)
    monkeypatch.setattr(rehearsal, "FakeTensorMode", lambda: MODE)


def recipe(quantization: str, target: int = 90) -> Recipe:
    dtype = torch.bfloat16 if target >= 80 else torch.float16
    config = EngineConfig(quantization=quantization, max_running=8)
    return Recipe("shape:tiny", config, torch.device("cuda:0"), TARGETS[target], dtype, 512)


def rehearsed(told: Recipe) -> list[tuple[CompileJob, int]]:
    found: list[tuple[CompileJob, int]] = []
    rehearsal.rehearse(told, lambda job, begun: found.append((job, begun)))
    return found


def key_of(source: Any, target: Any, options: Any) -> str:
    """Where Triton's compiler looks for a binary."""
    from triton._C.libtriton import get_cache_invalidating_env_vars

    backend = make_backend(target)
    parsed = backend.parse_options(dict(options) | source.parse_options())
    key = get_cache_key(source, backend, parsed, get_cache_invalidating_env_vars())
    return hashlib.sha256(key.encode()).hexdigest()


@contextmanager
def really_launching(capability: int, note: Callable[[str], None]) -> Iterator[None]:
    """In place of `noting_jobs`: every launch goes its whole way through Triton, with tensors that lie in real memory;
    only what would be compiled is not, and what would be launched does nothing. `note` hears the keys."""
    run, compiler, active = JITFunction.run, triton.compiler.compile, driver._active
    target = triton.backends.compiler.GPUTarget("cuda", capability, 32)
    device = object()
    storages: dict[int, tuple[Tensor, object]] = {}  # by the storages they stand for, which must not go meanwhile

    class Driver:
        def get_current_device(self) -> object:
            return device

        def get_current_stream(self, device: object) -> int:
            return 0

        def get_current_target(self) -> object:
            return target

    class Binary:
        function = packed_metadata = None

        def launch_metadata(self, *told: object) -> None:
            assert all(size > 0 for size in told[0])

        def run(self, *told: object) -> None:
            pass

    def real(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        storage = value.untyped_storage()
        with unset_fake_temporarily():
            if storage._cdata not in storages:
                storages[storage._cdata] = torch.empty(max(16, storage.nbytes()), dtype=torch.uint8), storage
            begin = storages[storage._cdata][0]
            assert begin.data_ptr() % 16 == 0
            whole = begin[: begin.numel() // value.element_size() * value.element_size()].view(value.dtype)
            return whole.as_strided(value.shape, value.stride(), value.storage_offset())

    def launch(self: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        touched.append(self)
        run(self, *map(real, args), grid=grid, warmup=warmup, **{name: real(value) for name, value in kwargs.items()})

    def compile_noted(source: Any, target: Any, options: Any) -> Binary:
        note(key_of(source, target, options))
        return Binary()

    touched: list[JITFunction] = []
    JITFunction.run, triton.compiler.compile = launch, compile_noted
    driver.set_active(Driver())
    try:
        yield
    finally:
        JITFunction.run, triton.compiler.compile, driver._active = run, compiler, active
        for kernel in touched:
            kernel.device_caches.pop(device, None)


@pytest.mark.parametrize(
    ("quantization", "target"), [("none", 90), ("int4", 90), ("nf4", 80), ("q4_k_m", 90), ("q4_0", 75), ("fp8", 89)]
)
def test_each_job_is_what_a_launch_looks_for_and_no_launch_looks_for_anything_else(
    quantization: str, target: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = recipe(quantization, target)
    jobs = [pickle.loads(pickle.dumps(job)) for job, _ in rehearsed(told)]
    found = [key_of(job.source(), job.target, job.options) for job in jobs]
    looked_for: list[str] = []
    monkeypatch.setattr(
        rehearsal, "noting_jobs", lambda capability, note: really_launching(capability, looked_for.append)
    )
    rehearsal.rehearse(told, lambda job, begun: None)
    assert len(set(found)) == len(found) > 25
    assert set(found) == set(looked_for)


class Headers(Checkpoint):
    """A checkpoint whose tensors nobody may read, matrices in one type of GGUF files."""

    path, kind, config, generation_config = Path("tiny.gguf"), "gguf", CONFIG, {}

    def __init__(self, kind: str) -> None:
        hidden, inner, kv = CONFIG["hidden_size"], CONFIG["intermediate_size"], 128
        shapes = {"model.embed_tokens": (CONFIG["vocab_size"], hidden), "lm_head": (CONFIG["vocab_size"], hidden)}
        for index in range(CONFIG["num_hidden_layers"]):
            layer = f"model.layers.{index}."
            attention = {"q_proj": (hidden, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden)}
            shapes |= {f"{layer}self_attn.{name}": shape for name, shape in attention.items()}
            shapes |= {f"{layer}self_attn.o_proj": (hidden, hidden), f"{layer}mlp.down_proj": (hidden, inner)}
            shapes |= {f"{layer}mlp.gate_proj": (inner, hidden), f"{layer}mlp.up_proj": (inner, hidden)}
            shapes |= {f"{layer}input_layernorm": (hidden,), f"{layer}post_attention_layernorm": (hidden,)}
        shapes["model.norm"] = (hidden,)
        self.tensors = {
            f"{name}.weight": TensorInfo(f"{name}.weight", kind, shape, self.path, 0, block_format(kind, shape))
            for name, shape in shapes.items()
        }

    def stream(self, names: object = None, dtype: object = None, *, pinned: bool = False) -> Any:
        raise AssertionError("a rehearsal reads no tensor")

    def load_tokenizer(self) -> Any:
        return SimpleNamespace(vocab_size=CONFIG["vocab_size"] - 2)


def test_a_checkpoint_is_gone_through_as_its_weights_stay_and_with_its_own_vocabulary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rehearsal, "open_checkpoint", lambda path: Headers("Q8_0"))
    monkeypatch.setattr(rehearsal, "Tokenizer", lambda tokenizer, name: tokenizer)
    jobs = [job for job, _ in rehearsed(replace(recipe("none"), source="tiny.gguf"))]
    kernels = {job.kernel for job in jobs}
    assert "gguf_gemv_kernel" in kernels  # which a config alone, in bfloat16, launches none of
    assert "best_kernel" not in kernels  # it would choose from rows of the head that no token has


def test_a_step_that_asks_for_numbers_is_left_out_and_the_others_are_gone_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernels: set[str] = set()
    monkeypatch.setattr(MixedGraphs, "_capture", lambda *told: torch.ones(3, device="cuda").sum().item())
    left_out = rehearsal.rehearse(recipe("none"), lambda job, begun: kernels.add(job.kernel))
    assert len(left_out) == sum(tokens > 0 for _, tokens, _ in FIRST_GRAPHS)
    assert all("_local_scalar_dense" in reason for reason in left_out)
    assert {"decode_kernel", "best_kernel", "dense_kernel"} <= kernels


def test_jobs_come_with_the_graph_that_first_needs_them() -> None:
    found = rehearsed(recipe("none"))
    begun = [number for _, number in found]
    assert begun == sorted(begun)
    assert begun[0] == 1
    assert begun[-1] == len(FIRST_GRAPHS)
    by_graph = {number: {job.kernel for job, at in found if at == number} for number in begun}
    assert {"decode_kernel", "_advance_kernel"} <= by_graph[1]  # a row is decoded
    assert "prefill_kernel" in by_graph[2]  # a prompt is read
    assert "best_kernel" in by_graph[3]  # the likeliest token is chosen without writing scores


def test_nothing_is_left_of_a_rehearsal() -> None:
    asked = torch.cuda.get_device_capability
    with pytest.raises(OSError, match="nobody listens"):
        rehearsal.rehearse(recipe("q4_k_m"), _raise)
    assert torch.cuda.get_device_capability is asked
    assert torch.empty(1).device.type == "cpu"
    assert torch.empty(1).untyped_storage().data_ptr() != 0


def test_a_process_that_sees_a_gpu_is_no_place_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(RuntimeError, match="sees no GPU"):
        rehearsal.rehearse(recipe("none"), lambda job, begun: None)


def _raise(job: CompileJob, begun: int) -> None:
    raise BrokenPipeError("nobody listens")
