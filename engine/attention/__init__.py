"""One attention interface and its backends: torch (reference, CPU) and paged Triton."""
