"""The weight formats of the engine, of config.yaml and of the documentation are the same."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from octavo.app.config import schema
from octavo.app.config.load import engine_config
from octavo.engine.quant import FORMATS

DOCUMENT = Path(__file__).parents[3] / "docs" / "quantization.md"


def test_every_format_can_be_configured_and_is_described() -> None:
    choices = get_args(schema.ModelSection.model_fields["quantization"].annotation)
    assert set(choices) == set(FORMATS)
    described = [
        line.split("|")[1].strip() for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if "|" in line
    ]
    assert all(f"`{name}`" in described for name in choices)


def test_the_settings_reach_the_engine() -> None:
    config = schema.Config.model_validate({"model": {"quantization": "int4", "quantize_head": True}})
    made = engine_config(config)
    assert (made.quantization, made.quantize_head) == ("int4", True)
    assert made.rounded_folder is not None
    assert Path(made.rounded_folder).name == "rounded"
