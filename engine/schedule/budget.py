"""How many tokens a step may compute, so that reading a long prompt never makes running chats stutter."""

from __future__ import annotations

MIN_CHUNK = 32  # below this a chunk costs nearly as much as none: the weights are read either way


class StepBudget:
    """Chunk sizes in tokens. While chats are decoding, a prompt's chunk is cut to what adds about `target_gap_s` to
    their step, judged by the steps seen so far; alone, a prompt gets the whole `max_chunk`.

    A chunk size the user has set is kept as it is (`adaptive=False`).
    """

    def __init__(self, max_chunk: int, target_gap_s: float, adaptive: bool = True) -> None:
        self.max_chunk = max_chunk
        self._target_gap_s = target_gap_s
        self._adaptive = adaptive
        self._decode_s: float | None = None  # a step without prompt tokens
        self._seconds_per_token: float | None = None  # what a prompt token adds to a step

    def chunk(self, num_decoding: int) -> int:
        """Prompt tokens the next step may take beside `num_decoding` running rows."""
        if not self._adaptive or num_decoding == 0 or self._seconds_per_token is None:
            return self.max_chunk
        fits = int(self._target_gap_s / self._seconds_per_token) // MIN_CHUNK * MIN_CHUNK
        return max(MIN_CHUNK, min(self.max_chunk, fits))

    def estimate_s(self, prompt_tokens: int, repeats: int = 1) -> float | None:
        """Seconds a step is expected to take; None before anything like it was seen."""
        if prompt_tokens == 0:
            return None if self._decode_s is None else self._decode_s * repeats
        return None if self._seconds_per_token is None else self._seconds_per_token * prompt_tokens

    def observe(self, prompt_tokens: int, num_decoding: int, seconds: float) -> None:
        """Tells how long a step with so many prompt tokens beside so many decoding rows took."""
        if prompt_tokens == 0:
            self._decode_s = _moved(self._decode_s, seconds)
        elif prompt_tokens >= MIN_CHUNK:
            base = self._decode_s if num_decoding and self._decode_s is not None else 0.0
            added = max(seconds - base, 0.1 * seconds)  # never free, however slow the last steps without one were
            self._seconds_per_token = _moved(self._seconds_per_token, added / prompt_tokens)


def _moved(average: float | None, value: float) -> float:
    return value if average is None else 0.7 * average + 0.3 * value
