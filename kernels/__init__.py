"""Triton kernels and, beside each, its plain torch reference; imports neither engine nor app."""
