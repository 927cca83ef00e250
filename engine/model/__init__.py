"""Models: the specification read from a config, the decoder, and the way in for other architectures."""
