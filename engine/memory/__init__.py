"""Pages, the prefix caches over them, and the KV tensors they stand for."""
