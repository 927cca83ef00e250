"""The sizes that steps with prompts are captured for."""

from __future__ import annotations

import pytest

from octavo.engine.run.mixed import decode_bucket, prompt_bucket, token_bucket


@pytest.mark.parametrize("max_rows", [1, 6, 64, 256])
def test_a_bucket_holds_what_it_serves_and_little_more(max_rows: int) -> None:
    for count in range(1, 9000, 13):
        tokens = token_bucket(count)
        assert count <= tokens <= max(16, 2 * count if count <= 64 else 1.25 * count)
        assert token_bucket(tokens) == tokens
        assert decode_bucket(0, tokens, max_rows) == 0
        for decodes in range(1, max_rows + 1, 5):
            places = decode_bucket(decodes, tokens, max_rows)
            assert decodes <= places <= max(max_rows, 8)
            assert places - decodes <= max(31, tokens / 8)
        prompts = min(count, 300)
        assert prompt_bucket(prompts, tokens) >= prompts


def test_a_burst_of_chats_needs_few_sizes() -> None:
    """256 prompts of 512 tokens, 16 a step, beside those that are already being answered."""
    sizes = {(decode_bucket(done, 8192, 256), prompt_bucket(16, 8192)) for done in range(0, 256, 16)}
    assert len(sizes) == 2
