"""The batched sampler and the table of what sampling settings mean."""
