"""Rounding a model once and for all with a text as its guide: RTN, AWQ, GPTQ and SmoothQuant, layer by layer."""
