"""Safetensors checkpoints whose weights other programs quantized, one module a method, as ordinary named weights."""
