"""By which method a folder's weights are quantized, from its config.json or the files some methods put beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from octavo.engine.errors import UnsupportedModelError
from octavo.engine.load.files import read_json_object
from octavo.engine.load.packed.awq import AWQ
from octavo.engine.load.packed.bnb import BitsAndBytes
from octavo.engine.load.packed.compressed import CompressedTensors
from octavo.engine.load.packed.float8 import BlockFloat8, RowFloat8
from octavo.engine.load.packed.gptq import GPTQ
from octavo.engine.load.packed.modelopt import ModelOpt
from octavo.engine.load.packed.mxfp4 import MXFP4
from octavo.engine.load.packed.scheme import Scheme
from octavo.engine.load.packed.torchao import TorchAO

SCHEMES: dict[str, type[Scheme]] = {
    "awq": AWQ,
    "gptq": GPTQ,
    "compressed-tensors": CompressedTensors,
    "bitsandbytes": BitsAndBytes,
    "fp8": BlockFloat8,
    "fbgemm_fp8": RowFloat8,
    "mxfp4": MXFP4,
    "modelopt": ModelOpt,
    "modelopt_fp4": ModelOpt,
    "torchao": TorchAO,
}
READ = ("AWQ", "GPTQ", "compressed-tensors", "bitsandbytes", "FP8", "MXFP4", "ModelOpt (NVFP4, FP8)", "torchao")

_BESIDE = {"hf_quant_config.json": "modelopt", "quantize_config.json": "gptq", "quant_config.json": "awq"}


def find_method(folder: Path, config: Mapping[str, Any], names: Iterable[str]) -> tuple[str, Mapping[str, Any]] | None:
    """(method, its settings), or None for plain weights. Raises UnsupportedModelError for a method that is not read."""
    settings = config.get("quantization_config") or config.get("compression_config")
    if not settings and isinstance(config.get("text_config"), Mapping):
        settings = config["text_config"].get("quantization_config")
    if isinstance(settings, Mapping) and settings:
        method = str(settings.get("quant_method") or settings.get("quant_type") or "").lower().replace("_", "-")
        method = {"fbgemm-fp8": "fbgemm_fp8", "modelopt-fp4": "modelopt", "gptq-v2": "gptq"}.get(method, method)
        if not method and ("load_in_4bit" in settings or "load_in_8bit" in settings):
            method = "bitsandbytes"
        if method not in SCHEMES:
            raise _unread(folder, method or "a method that its config.json does not name")
        return method, settings
    for file, method in _BESIDE.items():
        if (folder / file).is_file() and any(name.endswith((".qweight", ".weight_scale")) for name in names):
            return method, read_json_object(folder / file)
    return None


def _unread(folder: Path, method: str) -> UnsupportedModelError:
    instead = f"Use a version of the model as {', '.join(READ[:-1])} or {READ[-1]}, in 16 bit, or as a GGUF file."
    if method in ("exl2", "exl3"):
        return UnsupportedModelError(
            f"The weights of {folder.name} are quantized for ExLlama ({method.upper()}), whose codes only it can read.",
            remedy=instead,
        )
    return UnsupportedModelError(
        f"The weights of {folder.name} are quantized by {method}, which is not read.", remedy=instead
    )
