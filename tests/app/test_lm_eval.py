"""lm-eval's local-completions against our server agrees with the same log-likelihoods by transformers."""

from __future__ import annotations

from pathlib import Path

import pytest


def test_scores_that_lm_eval_reads_from_the_server_are_those_of_transformers(starter_path: Path) -> None:
    pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    from lm_eval_check import compare

    found = compare(starter_path, questions=4, runs=1)
    endings, sections = found["endings"], found["sections"]
    assert endings["requests"] == endings["same_greedy"] == 16
    assert sections["requests"] == sections["same_greedy"] == 1
    assert max(endings["most_off_per_token"], sections["most_off_per_token"]) < 1e-3
    assert endings["acc"] == endings["acc_by_transformers"]
    assert 1 < sections["byte_perplexity"] < 3
