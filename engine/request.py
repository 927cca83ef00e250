"""What goes into the engine and what comes back: plain data classes, so that the door could be a pipe one day."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

FinishReason = Literal["stop", "length", "aborted", "error"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request's tokens are chosen. Every value is already valid and means what it says;
    engine/sample/fields.py has the table of ranges and of what 0, -1 and null mean outside, and makes these."""

    temperature: float = 1.0  # 0: greedy
    top_p: float = 1.0  # 1: off
    top_k: int = 0  # 0: off
    min_p: float = 0.0  # 0: off
    repetition_penalty: float = 1.0  # 1: off; over prompt and reply
    presence_penalty: float = 0.0  # over the reply
    frequency_penalty: float = 0.0  # over the reply
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, added to its logit)
    seed: int | None = None  # None: drawn at submit
    max_tokens: int | None = None  # None: to the end of the window
    stop: tuple[str, ...] = ()  # stop strings, matched on decoded text, not part of the reply
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None  # None: none; n: the token's own and the n best alternatives
    prompt_logprobs: int | None = None  # the same for the prompt's tokens; such a request takes no prefix hit


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token, the natural logarithm of its probability under the model's raw logits, and the best alternatives."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob), best first


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request. `cached_tokens` of the prompt were not computed again."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    draft_tokens: int = 0  # guessed ahead and checked
    accepted_tokens: int = 0  # of those, the ones that were right and became part of the reply
    saved_steps: float = 0.0  # estimate: steps that right guesses saved, less what checking took longer, in plain steps

    @property
    def speedup(self) -> float:
        """Estimate: how many times as fast as plain decoding guesses made the reply; 1.0 for one without tokens."""
        return speedup(self.completion_tokens, self.saved_steps)


def speedup(tokens: int, saved_steps: float) -> float:
    """How many times as fast `tokens` came as they would have, one a step, without the steps that guesses saved."""
    return tokens / max(1.0, tokens - saved_steps) if tokens else 1.0


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds: queue = submit to first step; first_token = submit to first token; total = submit to end.

    decode_tok_s = tokens after the first / seconds after the first (0 for one token).
    """

    queue_s: float
    first_token_s: float
    total_s: float
    decode_tok_s: float


@dataclass(frozen=True, slots=True)
class Started:
    """The request got its pages and its first step is being prepared."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """`done` of `total` prompt tokens are in the cache, `cached` of them were there before."""

    request_id: str
    done: int
    total: int
    cached: int


@dataclass(frozen=True, slots=True)
class Delta:
    """Newly certain output. `token_ids` may come earlier than their text (half a character, a possible stop string)."""

    request_id: str
    text: str = ""  # of the answer
    reasoning: str = ""  # of the reasoning part, which comes before the answer
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event. `stopped_by` names the stop string or end token; `error` is one sentence if reason is "error"."""

    request_id: str
    reason: FinishReason
    usage: Usage
    timings: Timings
    stopped_by: str | None = None
    error: str | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None  # one a prompt token; the first has none


NOT_RUNNING = 0  # the epoch of a request that has no row

Event: TypeAlias = Started | PrefillProgress | Delta | Finished


class RequestStatus(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"  # waits again; its pages were given back
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Request:
    """One sequence's state, owned by the engine thread.

    Two clocks: `tokens` are the prompt and every confirmed token after it, and `num_computed` of them have certain keys
    and values in the pages; `len_planned` and `num_planned` run ahead of them by what the steps under way will bring.
    Pages are reserved by the second clock, everything that cannot be undone follows the first.
    """

    id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    arrival_s: float
    tokens: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_planned: int = 0  # like num_computed, once every launched step has come back
    len_planned: int = 0  # like len(tokens), once every launched step has come back
    end_ids: frozenset[int] = frozenset()  # tokens that end the reply
    status: RequestStatus = RequestStatus.WAITING
    pages: list[list[int]] = field(default_factory=list)  # physical page of each logical page, one list a cache group
    pages_changed: int = 0  # raised with every change of `pages`, so that tables are copied only then
    pages_replaced: int = 0  # raised when a page in them is given back, so that a table is copied from the beginning
    row: int | None = None  # its row in the runner's tables while it runs
    epoch: int = NOT_RUNNING  # names this stay in a row, unlike any other request's or any earlier stay
    cached_tokens: int = 0  # prompt tokens found in the cache at first admission
    prefix_handle: object | None = None  # the lock on its path in the prefix cache
    num_in_tree: int = 0  # tokens already offered to the prefix cache
    limit: int = 0  # len(tokens) may not pass this: prompt + max_tokens, or the window
    preemptions: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    saved_steps: float = 0.0

    def __post_init__(self) -> None:
        if not self.tokens:
            self.tokens = list(self.prompt_ids)
        self.forget_planned()

    def forget_planned(self) -> None:
        """Nothing is under way: the clock of what was launched goes back to what is certain."""
        self.num_planned, self.len_planned = self.num_computed, len(self.tokens)

    @property
    def num_prompt(self) -> int:
        return len(self.prompt_ids)

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - len(self.prompt_ids)

    @property
    def num_unplanned(self) -> int:
        """Tokens, known or on their way, that no launched step computes yet."""
        return self.len_planned - self.num_planned
