"""Sampling values of an API request: its own fields over the settings over the model's, OpenAI's defaults last."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from octavo.app.api.body import Body
from octavo.app.chat.sampling import API_DEFAULTS, sampling_params
from octavo.engine.request import SamplingParams

if TYPE_CHECKING:
    from octavo.app.config import Settings
    from octavo.engine.engine import Engine

FIELDS = (
    *("temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias", "seed", "stop"),
    *("top_k", "min_p", "repetition_penalty", "stop_token_ids", "ignore_eos"),  # extensions, by vLLM's names
)


def request_params(
    body: Body, engine: Engine, settings: Settings, *, allow_zero_tokens: bool = False, **own: Any
) -> SamplingParams:
    """The request's values; `own` are fields that the route read itself. Raises RequestError naming the wrong field."""
    return sampling_params(
        {**body.named(FIELDS), **own},
        settings=settings.values.sampling.model_dump(),
        model=engine.info.generation_defaults,
        ours=API_DEFAULTS,
        vocab_size=engine.info.vocab_size,
        allow_zero_tokens=allow_zero_tokens,
    )


def choices_of(params: SamplingParams, count: int) -> list[SamplingParams]:
    """`count` choices to one prompt: a given seed makes them different, but the same the next time."""
    if params.seed is None:
        return [params] * count
    return [params, *(replace(params, seed=(params.seed + index) % 2**63) for index in range(1, count))]
