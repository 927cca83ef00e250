"""Log probabilities of given tokens and of the best alternatives, from raw logits."""

from __future__ import annotations

from torch import Tensor


def score_tokens(logits: Tensor, ids: Tensor, top_n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Natural log probabilities float32 [N] of ids int64 [N] under float32 logits [N, V], and the `top_n` best tokens:
    ids int64 [N, top_n] and log probabilities float32 [N, top_n], best first (empty for 0).

    Makes no second [N, V] tensor; a long prompt is still to be scored in slices, for the logits' own sake.
    """
    sums = logits.logsumexp(-1, keepdim=True)
    own = logits.gather(1, ids[:, None]) - sums
    values, top_ids = logits.topk(min(top_n, logits.shape[-1]), dim=-1)
    return own.squeeze(1), top_ids, values - sums
