"""The batched sampler and the table of what sampling settings mean."""

from octavo.engine.sample.fields import FIELDS, describe_fields, make_params, usable_defaults
from octavo.engine.sample.sampler import Sampled, Sampler
from octavo.engine.sample.scoring import score_tokens

__all__ = ["FIELDS", "Sampled", "Sampler", "describe_fields", "make_params", "score_tokens", "usable_defaults"]
