"""From the configuration to a speculator: which drafter, with what model, and why not if it cannot be."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from octavo.engine.attention import choose_backend
from octavo.engine.config import EngineConfig
from octavo.engine.errors import OctavoError
from octavo.engine.load.checkpoint import open_checkpoint
from octavo.engine.memory import KVCache, PagePool
from octavo.engine.model.base import CausalModel
from octavo.engine.model.build import build_model, longest_context
from octavo.engine.model.decoder import Decoder
from octavo.engine.model.early_exit import FirstLayers
from octavo.engine.request import Request
from octavo.engine.run.resolve import free_memory
from octavo.engine.run.runner import ModelRunner
from octavo.engine.speculate.base import Drafter
from octavo.engine.speculate.guesser import Guesser
from octavo.engine.speculate.model import EarlyExitDrafter, FirstOf, ModelDrafter, check_vocabulary
from octavo.engine.speculate.ngram import NgramDrafter
from octavo.engine.speculate.speculator import MOST_ROWS, Speculator
from octavo.engine.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

DRAFT_SHARE = 0.1  # of the free memory, for what a draft model remembers
DRAFT_CHATS = 4
EARLY_EXIT = 0.25  # of the layers guess for the rest


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A loaded draft model and the length of text it can see."""

    model: CausalModel
    window: int


def load_draft(
    config: EngineConfig, model: CausalModel, tokenizer: Tokenizer | None, context_length: int
) -> DraftModel | OctavoError | None:
    """The draft model if the configuration wants one, or why guessing as configured cannot be: it is then left out."""
    if config.speculation == "self" and not isinstance(model, Decoder):
        return OctavoError(
            f"speculation.mode is self, but {model.architecture} runs through its transformers class, which cannot be "
            "left after its first layers.",
            remedy="Choose another speculation.mode.",
        )
    if config.speculation not in ("draft", "auto") or (config.draft_model is None and config.speculation == "auto"):
        return None
    try:
        if config.draft_model is None:
            raise OctavoError(
                "speculation.mode is draft, but no draft model is named.",
                remedy="Set speculation.draft_model, or another mode.",
            )
        if tokenizer is None:
            raise OctavoError(
                "A shape has no tokenizer, so no other model can guess for it.",
                remedy="Choose another speculation.mode.",
            )
        with open_checkpoint(Path(config.draft_model)) as checkpoint:
            other = Tokenizer(checkpoint.load_tokenizer(), name=checkpoint.path.name)
            check_vocabulary(tokenizer.vocabulary, other.vocabulary)
            window = min(context_length, longest_context(checkpoint.config))
            draft = build_model(
                checkpoint, device=model.device, dtype=model.dtype, context_length=window, fusion=config.fusion
            )
        if len(draft.cache_groups) != 1:
            raise OctavoError(
                f"The draft model {draft.name} keeps windows of its layers apart.",
                remedy="Choose a draft model whose layers all see the whole text.",
            )
        return DraftModel(draft, window)
    except OctavoError as error:
        return error


def running_mode(config: EngineConfig, model: CausalModel, draft: DraftModel | None) -> str:
    """What really guesses: "off" where the configured mode cannot be, "ngram" for an auto without a draft model."""
    if config.speculation == "self" and not isinstance(model, Decoder):
        return "off"
    if draft is None and config.speculation in ("draft", "auto"):
        return "ngram" if config.speculation == "auto" else "off"
    return config.speculation


def make_speculator(
    config: EngineConfig,
    model: CausalModel,
    runner: ModelRunner,
    draft: DraftModel | None,
    context_length: int,
    valid_vocab: int | None,
    reserve: Callable[[Request, int], bool],
) -> Speculator | None:
    """The engine's speculator, or None where the mode is off or cannot be."""
    drafter = _make_drafter(config, model, runner, draft, context_length, valid_vocab, reserve)
    return None if drafter is None else Speculator(drafter, config.draft_tokens)


def _make_drafter(
    config: EngineConfig,
    model: CausalModel,
    runner: ModelRunner,
    draft: DraftModel | None,
    context_length: int,
    valid_vocab: int | None,
    reserve: Callable[[Request, int], bool],
) -> Drafter | None:
    mode = running_mode(config, model, draft)
    if mode == "ngram":
        return NgramDrafter()
    if mode == "self" and isinstance(model, Decoder):
        layers = max(1, round(EARLY_EXIT * len(model.attn_specs)))
        early = ModelRunner(
            FirstLayers(model, layers),
            runner.cache,
            runner.backend,
            max_running=config.max_running,
            context_length=context_length,
            valid_vocab=valid_vocab,
            graphs=config.fusion,
        )
        return EarlyExitDrafter(Guesser(early), reserve)
    if draft is None:
        return None
    by_model = _model_drafter(config, draft, valid_vocab)
    return by_model if mode == "draft" else FirstOf([NgramDrafter(), by_model])


def _model_drafter(config: EngineConfig, draft: DraftModel, valid_vocab: int | None) -> ModelDrafter:
    model, size = draft.model, config.page_size
    per_page = model.cache_groups[0].numel_per_token * model.dtype.itemsize * size
    wanted = DRAFT_CHATS * -(-(draft.window + config.draft_tokens) // size)
    pages = max(2, min(wanted, int(free_memory(model.device) * DRAFT_SHARE) // per_page)) + 1
    cache = KVCache(model.cache_groups, [pages], size, model.dtype, model.device)
    rows = min(MOST_ROWS, config.max_running)
    runner = ModelRunner(
        model,
        cache,
        choose_backend(model.device, model.dtype, model.attn_specs, config.fusion),
        max_running=rows,
        context_length=draft.window,
        valid_vocab=valid_vocab,
        graphs=config.fusion,
    )
    chunk = 512 if model.device.type == "cpu" else 4096
    return ModelDrafter(Guesser(runner), PagePool(pages), size, draft.window, rows, chunk)
