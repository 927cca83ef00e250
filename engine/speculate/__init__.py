"""Speculative decoding: who guesses the next tokens, and whether guessing pays. Verification is the runner's."""

from octavo.engine.speculate.base import Drafter
from octavo.engine.speculate.ngram import NgramDrafter
from octavo.engine.speculate.speculator import Speculator

__all__ = ["Drafter", "NgramDrafter", "Speculator"]
