"""Environment variables that libraries read when they are imported, so they must be set before."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

DEFAULTS = {
    "GRADIO_ANALYTICS_ENABLED": "False",  # no request leaves the machine
    "GRADIO_RUN_HISTORY": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_XET": "1",  # plain HTTP transfers can be cancelled at once and go on where they stopped
    "OMP_WAIT_POLICY": "passive",  # idle threads sleep: an idle app must not heat the machine
    "TOKENIZERS_PARALLELISM": "false",
    "PYDANTIC_DISABLE_PLUGINS": "__all__",
}


def prepare(environment: MutableMapping[str, str] = os.environ) -> None:
    """Sets what the user has not set."""
    for name, value in DEFAULTS.items():
        environment.setdefault(name, value)
