"""What an engine did since it was built, in numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Totals since the engine was built."""

    steps: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    generated_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    guess_cost_steps: float = 0.0  # estimate: what checking guesses took longer, in plain steps
    aborted: int = 0
    failed: int = 0
