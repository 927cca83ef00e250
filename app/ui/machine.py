"""What the page says about the machine while there is no model yet: its hardware, and models that would suit it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from octavo.app.hardware import Hardware, look
from octavo.app.library.suggestions import Suggestion, suggest


def describe() -> dict[str, Any]:
    """A message for the page. Takes a moment: asks the drivers."""
    from huggingface_hub import constants

    hardware = look()
    models = [suggestion(model) for model in suggest(hardware)]
    return {"k": "machine", **hardware_now(hardware), "models": models, "offline": constants.HF_HUB_OFFLINE}


def hardware_now(hardware: Hardware) -> dict[str, Any]:
    """Processor, memory and GPUs as they are now; sizes in bytes."""
    return {
        "processor": hardware.processor,
        "cores": hardware.cores,
        "total": hardware.total_bytes,
        "free": hardware.free_bytes,
        "driver": hardware.driver,
        "gpus": [{**asdict(gpu), "total": gpu.total_bytes, "free": gpu.free_bytes} for gpu in hardware.gpus],
    }


def suggestion(model: Suggestion) -> dict[str, Any]:
    return {
        "id": model.id,
        "parameters": model.parameters,
        "download": model.download_bytes,
        "size": model.size_bytes,
        "quantization": model.quantization,
    }
