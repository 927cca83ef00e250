"""From a full-precision checkpoint to a quantized one, layer by layer; may be interrupted and gone on with."""

from __future__ import annotations

import hashlib
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from octavo.engine.errors import CheckpointError, OctavoError, UnsupportedModelError
from octavo.engine.load.checkpoint import Checkpoint, open_checkpoint
from octavo.engine.load.packed.checkpoint import PackedCheckpoint
from octavo.engine.load.rounded_cache import fingerprint
from octavo.engine.load.write_folder import shard_name, write_beside, write_index, write_json
from octavo.engine.load.write_packed import packed_tensors, quantization_config
from octavo.engine.model.families import Source, plan_weights
from octavo.engine.model.spec import FAMILIES, ModelSpec, has_own_decoder
from octavo.engine.quant.calibrate.asked import Asked, describe_settings, differences
from octavo.engine.quant.calibrate.errors import QuantizeError
from octavo.engine.quant.calibrate.evaluate import measure
from octavo.engine.quant.calibrate.inputs import Inputs
from octavo.engine.quant.calibrate.layer import SLOTS, Layer
from octavo.engine.quant.calibrate.lock import FolderLock
from octavo.engine.quant.calibrate.methods import (
    SAMPLES,
    LayerResult,
    round_activations,
    round_layer,
    rounded_activations,
)
from octavo.engine.quant.calibrate.place import check_place
from octavo.engine.quant.calibrate.report import REPORT, Report, layer_row
from octavo.engine.quant.calibrate.settings import Settings
from octavo.engine.quant.calibrate.state import Progress, StateFolder
from octavo.engine.quant.calibrate.text import WINDOW, Text, cut_text
from octavo.engine.quant.calibrate.walk import Walk
from octavo.engine.run.resolve import resolve_device, resolve_dtype
from octavo.engine.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

_VERSION = 1  # to be raised when the same settings give other weights
_SPARE_BYTES = 64 << 20  # of the disk, for what stands beside the weights
_PLAIN = ("lm_head",)  # the linears that are left alone
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Job:
    """All that was asked for. `text` and `evaluate` are texts, `text_name` says where the first is from."""

    model: Path
    out: Path
    settings: Settings
    text: str
    text_name: str
    tokens: int
    evaluate: str | None = None
    eval_tokens: int = 0  # 0: perplexity is not measured
    device: str = "auto"
    dtype: str = "auto"
    resume: bool = False  # goes on with an unfinished run
    restart: bool = False  # removes what an unfinished run left, and begins anew


def quantize(job: Job, say: Say) -> Report:
    """Writes the quantized model to `job.out`, telling each step. Raises QuantizeError and LoadError's kinds before
    anything is written, OSError for a disk that fails; what was done until then is kept for `resume`."""
    state = StateFolder(job.out)
    check_place(job.out, job.resume, job.restart)
    with FolderLock(state.folder):
        check_place(job.out, job.resume, job.restart)  # nobody else changes it from here on
        with open_checkpoint(job.model) as checkpoint, torch.inference_mode():
            run = _Run(job, checkpoint, state, say)
            run.layers()
            run.rest()
        run.measure()
        report = run.report()
        write_json(state.model / REPORT, report.as_json())
        state.finish()
    return report


class _Run:
    """One run; after `layers` and `rest` the model stands in the state folder."""

    def __init__(self, job: Job, checkpoint: Checkpoint, state: StateFolder, say: Say) -> None:
        self.job, self.checkpoint, self.state, self.say = job, checkpoint, state, say
        job.settings.checked()  # what cannot be is said before anything is read
        self.spec = _spec(checkpoint)
        self.sources = plan_weights(self.spec, checkpoint.tensors).sources
        self.settings = job.settings.resolved(self._widths())
        self.device, _ = resolve_device(job.device)
        self.dtype = resolve_dtype(job.dtype, self.device)
        self.stored = _stored_dtype(checkpoint, self.settings)
        self.text = self._cut()
        self.walk = Walk(self.spec, self.text.windows.shape[1], device=self.device, dtype=self.dtype)
        self.bytes_before = sum(checkpoint.tensors[name].size_bytes for name in self.sources)
        self._check_disk()
        self.progress = self._begin()

    # -- before ---------------------------------------------------------------------------------------------------

    def _widths(self) -> dict[str, tuple[int, int]]:
        shapes = {}
        for name, source in self.sources.items():
            shape = self.checkpoint.tensors[name].shape
            if source.parts[0].startswith("layers.") and len(shape) == 2:
                shapes[name.removesuffix(".weight")] = (shape[0], shape[1])
        return shapes

    def _cut(self) -> Text:
        job = self.job
        tokenizer = Tokenizer(self.checkpoint.load_tokenizer(), name=self.checkpoint.path.name)
        length = min(WINDOW, self.spec.max_positions)
        text = cut_text(tokenizer, job.text, job.text_name, job.tokens, length, job.evaluate)
        if text.windows.numel() < job.tokens - length:
            self.say(f"{job.text_name} gives {text.windows.numel():,} of the {job.tokens:,} tokens asked for.")
        return text

    def _check_disk(self) -> None:
        bits = self.settings.bits or 16
        linears = sum(out * width for out, width in self._widths().values())
        numbers = sum(_count(self.checkpoint.tensors[name].shape) for name in self.sources)
        weights = (numbers - linears) * self.stored.itemsize + linears * (bits + 1) // 8
        hidden = 2 * self.text.windows.numel() * self.spec.hidden_size * self.dtype.itemsize
        needed = weights + hidden + _SPARE_BYTES
        kept = sum(file.stat().st_size for file in self.state.folder.rglob("*") if file.is_file())
        free = shutil.disk_usage(self.job.out.parent).free + kept
        if free < needed:
            raise QuantizeError(
                f"The quantized model and its work need {needed / (1 << 30):.1f} GiB, "
                f"and the disk of {self.job.out.parent} has {free / (1 << 30):.1f} GiB.",
                remedy="Make room, name another disk, or use fewer --tokens.",
            )

    def _begin(self) -> Progress:
        asked = self._asked()
        found = self.state.load()
        if found is None or self.job.restart:
            return self.state.begin(asked)
        if found.asked != asked:
            clauses = differences(found.asked, asked) or ["another tokenizer, or by another version of Octavo"]
            raise QuantizeError(
                f"The unfinished run in {self.state.folder} was asked for something else: {'; '.join(clauses)}.",
                remedy="Ask for the same with --resume, or use --restart to begin anew without what it has done.",
            )
        if not self.state.has_layers(len(found.layers), len(self.spec.layers)):
            raise self._unreadable("weight files are missing")
        self.state.model.mkdir(exist_ok=True)
        self.say(f"Going on after {len(found.layers)} of {len(self.spec.layers)} layers.")
        return found

    def _asked(self) -> Asked:
        """All that changes what is written, each with how it is shown."""
        files = {self.checkpoint.tensors[name].file for name in self.sources}
        job, windows = self.job, self.text.windows
        own = "a part held back" if job.evaluate is None else "a text of its own"
        calibration = hashlib.sha256(job.text.encode("utf-8", "surrogatepass")).hexdigest()
        asked: Asked = {
            "MODEL": [fingerprint(files), self.checkpoint.path.name],
            **describe_settings(self.settings),
            "--calibration": [calibration, job.text_name],
            "--tokens": [windows.numel(), f"{windows.numel():,}"],
            "--eval": [own, own],
            "--device": [self.device.type] * 2,
            "--dtype": [str(self.dtype).removeprefix("torch.")] * 2,
        }
        return asked | {"windows": [self.text.digest, ""], "version": [_VERSION, ""]}

    def _unreadable(self, why: object) -> QuantizeError:
        return QuantizeError(
            f"What the unfinished run left in {self.state.folder} cannot be read ({why}).",
            remedy="Use --restart to begin anew.",
        )

    # -- the layers -----------------------------------------------------------------------------------------------

    def layers(self) -> None:
        """Rounds and writes all layers that are not written yet."""
        total, done = len(self.spec.layers), len(self.progress.layers)
        if done == total:
            return
        hidden = self._hidden(done)
        begun = time.monotonic()
        for index in range(done, total):
            layer = self._gather(index)
            result, hidden, error = self._round(layer, hidden)
            self.state.write(shard_name(index + 1, total + 1), self._tensors(layer, result))
            if index + 1 < total:
                self.state.keep_hidden(index + 1, hidden)
            row = layer_row(index, error, result.errors)
            self.progress.layers.append(row)
            self.state.save(self.progress)
            self.state.forget_hidden(index)
            each = (time.monotonic() - begun) / (index + 1 - done)
            left = each * (total - index - 1)
            self.say(f"layer {index + 1} of {total}: error {error:.2%}, {each:.1f} s a layer{_left(left)}")

    def _hidden(self, done: int) -> Tensor:
        """The inputs of the first layer that is to be done."""
        if done:
            try:
                return self.state.hidden(done)
            except (OSError, CheckpointError, KeyError) as error:
                raise self._unreadable(error) from error
        name = next(name for name, source in self.sources.items() if source.parts == ("embed.weight",))
        return self.walk.embed(self.checkpoint.read(name, self.dtype), self.text.windows)

    def _gather(self, index: int) -> Layer:
        sources = self._of_layer(index)
        tensors = dict(self.checkpoint.stream([source.name for source in sources]))
        return Layer.gather(index, self.spec, sources, tensors, self.device)

    def _of_layer(self, index: int) -> list[Source]:
        return [source for source in self.sources.values() if source.parts[0].startswith(f"layers.{index}.")]

    def _round(self, layer: Layer, hidden: Tensor) -> tuple[LayerResult, Tensor, float]:
        """The layer's result, the next one's inputs, and the relative error of what the layer adds to the stream."""
        settings = self.settings
        # GPTQ goes on with what the rounded layer gives, so that later layers make up for its errors
        tokens, goes_on = _count(hidden.shape[:2]), settings.method == "gptq"
        inputs = {slot: Inputs(tokens, samples=SAMPLES, gram=goes_on) for slot in SLOTS}
        out = self.walk.through(layer, hidden, inputs)
        result = round_layer(layer, inputs, settings, self.stored)
        for norm in layer.norms.values():
            norm.weight = norm.weight.to(self.stored).float()
        change = round_activations if rounded_activations(settings) else None
        some = hidden if goes_on else hidden[: self.walk.batch]
        found = self.walk.through(layer, some, change=change)
        wanted = out[: len(some)]
        error = _norm(found, wanted) / max(_norm(wanted, some), 1e-30)
        return result, found if goes_on else out, error

    def _tensors(self, layer: Layer, result: LayerResult) -> dict[str, Tensor]:
        """What the layer's weight file holds."""
        settings = self.settings
        bits, symmetric = settings.bits or 0, bool(settings.symmetric)
        tensors = {norm.name: norm.weight.to(self.stored) for norm in layer.norms.values()}
        for name, linear in layer.linears.items():
            one = result.rounded[name].to("cpu")
            roles = packed_tensors(settings.layout, bits, symmetric, one.codes, one.scale, one.zero, self.stored)
            tensors |= {f"{name}.{role}": tensor for role, tensor in roles.items()}
            if linear.bias is not None:
                tensors[linear.bias_name] = linear.bias.to(self.stored)
        return dict(sorted(tensors.items()))

    # -- after ----------------------------------------------------------------------------------------------------

    def rest(self) -> None:
        """Writes what belongs to no layer, and what stands beside the weights."""
        total = len(self.spec.layers) + 1
        names = [name for name, source in self.sources.items() if not source.parts[0].startswith("layers.")]
        self.state.write(shard_name(total, total), dict(self._plain(names)))
        settings = self.settings
        config = quantization_config(
            settings.layout,
            settings.bits or 0,
            settings.group or 0,
            bool(settings.symmetric),
            settings.method == "gptq" and settings.act_order,
            _PLAIN,
        )
        write_beside(self.checkpoint, self.state.model, config, self.stored)
        self.bytes_after = write_index(self.state.model)

    def _plain(self, names: list[str]) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self.checkpoint.stream(names, self.stored):
            if not bool(tensor.isfinite().all()):
                raise QuantizeError(
                    f"{name} holds numbers beyond what {str(self.stored).removeprefix('torch.')} can hold.",
                    remedy="Use --format compressed-tensors.",
                )
            yield name, tensor

    def measure(self) -> None:
        """The perplexity of both models on the text that was held back; a model that cannot be loaded goes without."""
        ids = list(self.text.held_out[: self.job.eval_tokens])
        if len(ids) < 2:
            return
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # torch would keep for itself what the layers took
        progress = self.progress
        mark = hashlib.sha256(repr(ids).encode()).hexdigest()
        if progress.measured_on != mark:
            progress.perplexity, progress.measured_on = {"tokens": len(ids)}, mark
        for which, path in (("before", self.job.model), ("after", self.state.model)):
            if which in progress.perplexity:
                continue
            self.say(f"measuring the perplexity {which} on {len(ids):,} tokens")
            try:
                packed = which == "after" and rounded_activations(self.settings)
                found = measure(path, ids, packed=packed, device=self.job.device, dtype=self.job.dtype)
            except OctavoError as error:
                self.say(f"The perplexity could not be measured: {error}")
                return
            progress.perplexity[which] = found
            self.state.save(progress)

    def report(self) -> Report:
        """What was done and what it cost."""
        return Report(
            model=self.checkpoint.path.name,
            settings=self.settings,
            stored=str(self.stored).removeprefix("torch."),
            text=self.job.text_name,
            tokens=self.text.windows.numel(),
            window=self.text.windows.shape[1],
            layers=tuple(self.progress.layers),
            perplexity=dict(self.progress.perplexity) if "after" in self.progress.perplexity else {},
            bytes_before=self.bytes_before,
            bytes_after=self.bytes_after,
        )


def _spec(checkpoint: Checkpoint) -> ModelSpec:
    """The model's spec if it can be quantized here. Raises QuantizeError, UnsupportedModelError."""
    name = checkpoint.path.name
    if isinstance(checkpoint, PackedCheckpoint):
        raise QuantizeError(
            f"{name} is quantized already ({checkpoint.method}).", remedy="Name the model that it was made from."
        )
    if not has_own_decoder(checkpoint.config):
        raise UnsupportedModelError(
            f"The architecture of {name} ({checkpoint.config.get('model_type')}) runs through its transformers class, "
            "whose layers cannot be rounded one by one.",
            remedy=f"Models of the families {', '.join(FAMILIES)} can.",
        )
    spec = ModelSpec.from_config(checkpoint.config)
    if spec.experts is not None:
        raise UnsupportedModelError(
            f"{name} is a mixture of experts, of which a text reaches too few for calibration here.",
            remedy="Set model.quantization to int4 or int8, which rounds experts while the model is loaded.",
        )
    if spec.multimodal:
        raise UnsupportedModelError(
            f"{name} is multimodal, and its other parts would be lost.",
            remedy="Set model.quantization, which rounds the text part while the model is loaded.",
        )
    return spec


def _stored_dtype(checkpoint: Checkpoint, settings: Settings) -> torch.dtype:
    """What norms, embedding and scales are written in: 16 bit, of the kind that the checkpoint has."""
    if settings.layout == "awq":
        return torch.float16  # what the readers of AWQ files compute in
    halves = sum(info.size_bytes for info in checkpoint.tensors.values() if info.dtype == "F16")
    total = sum(info.size_bytes for info in checkpoint.tensors.values())
    return torch.float16 if halves * 2 > total else torch.bfloat16


def _norm(a: Tensor, b: Tensor) -> float:
    return float((a.float() - b.float()).norm())


def _count(shape: Sequence[int]) -> int:
    return int(torch.Size(shape).numel())


def _left(seconds: float) -> str:
    if seconds < 1:
        return ""
    return f", {seconds / 60:.0f} min left" if seconds >= 90 else f", {seconds:.0f} s left"
