"""Triton kernels and, beside each, its plain torch reference; imports neither engine nor app."""

import os

# Products and sums are meant to be one instruction: from Triton 3.10 on that has to be asked for.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
