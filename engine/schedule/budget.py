"""How many tokens a step may compute, so that reading a long prompt never makes running chats stutter."""

from __future__ import annotations

MIN_CHUNK = 32  # below this a chunk costs nearly as much as none: the weights are read either way
MOST_CHANGE = (
    4  # a chunk shrinks to a quarter at most and grows to twice: one slow step (a first use) soon is forgotten
)


class StepBudget:
    """Chunk sizes in tokens. While chats are decoding, a prompt's chunk is steered to what adds about `target_gap_s` to
    their step, by how long steps of that size took; alone, a prompt gets the whole `max_chunk`.

    A chunk size the user has set is kept as it is (`adaptive=False`).
    """

    def __init__(self, max_chunk: int, target_gap_s: float, adaptive: bool = True) -> None:
        self.max_chunk = max_chunk
        self._target_gap_s = target_gap_s
        self._adaptive = adaptive
        self._shared_chunk: int | None = None  # what a prompt gets beside running chats; None: nothing was seen yet
        self._decode_s: float | None = None  # a step without prompt tokens
        self._seconds_per_token: float | None = None  # of the last steps with prompt tokens

    def chunk(self, num_decoding: int) -> int:
        """Prompt tokens the next step may take beside `num_decoding` running rows."""
        if not self._adaptive or num_decoding == 0 or self._shared_chunk is None:
            return self.max_chunk
        return max(1, min(self.max_chunk, self._shared_chunk))

    def estimate_s(self, prompt_tokens: int, repeats: int = 1) -> float | None:
        """Seconds a step is expected to take; None before anything like it was seen."""
        if prompt_tokens == 0:
            return None if self._decode_s is None else self._decode_s * repeats
        return None if self._seconds_per_token is None else self._seconds_per_token * prompt_tokens

    def observe(self, prompt_tokens: int, num_decoding: int, seconds: float) -> None:
        """Tells how long a step with so many prompt tokens beside so many decoding rows took."""
        if prompt_tokens == 0:
            self._decode_s = seconds if self._decode_s is None else 0.7 * self._decode_s + 0.3 * seconds
            return
        self._seconds_per_token = seconds / prompt_tokens
        base = self._decode_s if num_decoding and self._decode_s is not None else 0.0
        added = max(seconds - base, 0.1 * seconds, 1e-6)  # never free, however slow the steps without one were
        fits = int(prompt_tokens * self._target_gap_s / added)
        known = self._shared_chunk if self._shared_chunk is not None else self.max_chunk
        if fits < prompt_tokens:  # too slow
            wanted = max(fits, prompt_tokens // MOST_CHANGE)
        elif prompt_tokens >= known // 2:  # what fixed costs a chunk has only larger ones can show
            wanted = max(known, min(fits, 2 * prompt_tokens))
        else:
            return
        self._shared_chunk = max(MIN_CHUNK, min(self.max_chunk, _rounded(wanted)))


def _rounded(tokens: int) -> int:
    """Down to one of four sizes an octave, so that captured steps of a few sizes serve a burst of prompts."""
    step = max(MIN_CHUNK, 1 << max(0, tokens.bit_length() - 3))
    return tokens // step * step
