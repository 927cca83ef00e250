"""Compiled kernels for the CPU: a whole decode step in one call, made by numba for the processor at hand.

Every module here but `crew` and `fields` needs numba; nothing on CUDA imports this package.
"""
