"""Text: tokenizer, chat template, and one request's way from ids to text (characters, reasoning, stop strings)."""

from octavo.engine.text.detokenizer import Detokenizer
from octavo.engine.text.known import join_known
from octavo.engine.text.output import OutputText, Piece
from octavo.engine.text.reasoning import ReasoningFormat, ReasoningSplitter, detect_reasoning, split_reasoning
from octavo.engine.text.stops import StopChecker, stop_token_ids
from octavo.engine.text.template import ChatTemplate, RenderedPrompt
from octavo.engine.text.tokenizer import Tokenizer

__all__ = [
    "ChatTemplate",
    "Detokenizer",
    "OutputText",
    "Piece",
    "ReasoningFormat",
    "ReasoningSplitter",
    "RenderedPrompt",
    "StopChecker",
    "Tokenizer",
    "detect_reasoning",
    "join_known",
    "split_reasoning",
    "stop_token_ids",
]
