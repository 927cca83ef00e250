"""Running steps: the device-side rows, the runner, CUDA graphs, and how "auto" settings become values."""
