"""How many tokens a step may compute, so that reading a long prompt never makes running chats stutter."""

from __future__ import annotations

MIN_CHUNK = 32  # below this a chunk costs nearly as much as none: the weights are read either way


class StepBudget:
    """Chunk sizes in tokens. While chats are decoding, a prompt's chunk is cut to what takes about `target_gap_s`,
    judged by the speed of the steps seen so far; alone, a prompt gets the whole `max_chunk`.

    A chunk size the user has set is kept as it is (`adaptive=False`).
    """

    def __init__(self, max_chunk: int, target_gap_s: float, adaptive: bool = True) -> None:
        self.max_chunk = max_chunk
        self._target_gap_s = target_gap_s
        self._adaptive = adaptive
        self._seconds_per_token: float | None = None

    def chunk(self, num_decoding: int) -> int:
        """Prompt tokens the next step may take beside `num_decoding` running rows."""
        if not self._adaptive or num_decoding == 0 or self._seconds_per_token is None:
            return self.max_chunk
        fits = int(self._target_gap_s / self._seconds_per_token) // MIN_CHUNK * MIN_CHUNK
        return max(MIN_CHUNK, min(self.max_chunk, fits))

    def observe(self, prompt_tokens: int, seconds: float) -> None:
        """Tells how long a step with so many prompt tokens took."""
        if prompt_tokens < MIN_CHUNK:
            return
        rate = seconds / prompt_tokens
        old = self._seconds_per_token
        self._seconds_per_token = rate if old is None else 0.7 * old + 0.3 * rate
