"""Which requests run in a step: the scheduler and its policies."""
