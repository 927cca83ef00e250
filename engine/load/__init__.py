"""Checkpoints on disk (safetensors, GGUF) as named tensors, streamed."""
