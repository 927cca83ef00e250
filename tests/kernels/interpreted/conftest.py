"""Collected only in the process that test_interpreted.py starts: Triton reads the choice when it is imported."""

import os

if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob = ["test_*.py"]
