import pytest
import torch

from octavo.engine.model.ops import rotate
from octavo.kernels.rope import rope_write, rope_write_reference, rotate_reference, write_kv, write_kv_reference

NAN = float("nan")


def rotary_table(positions: int, dim: int) -> torch.Tensor:
    angles = torch.arange(positions)[:, None] / 100.0 ** (torch.arange(dim // 2) * 2 / dim)
    return torch.cat((angles.cos(), angles.sin()), 1)


def heads(tokens: int, counts: tuple[int, int], dim: int, v_dim: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """q, k and v as views of one merged projection."""
    sizes = (counts[0] * dim, counts[1] * dim, counts[1] * v_dim)
    parts = torch.randn(tokens, sum(sizes)).to(dtype).split(sizes, 1)
    return [part.unflatten(1, (-1, width)) for part, width in zip(parts, (dim, dim, v_dim))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("counts", "dim", "v_dim", "rotary", "page_size", "norm"),
    [
        ((4, 2), 64, 64, 64, 16, None),
        ((3, 3), 80, 80, 80, 16, "same"),
        ((7, 1), 96, 32, 24, 7, "float32"),
        ((1, 1), 16, 16, 8, 1, "same"),
        ((40, 8), 128, 128, 128, 50, None),
    ],
)
def test_rotated_heads_and_written_pages_equal_the_reference(counts, dim, v_dim, rotary, page_size, norm, dtype):
    tokens, pages = 6, 9
    q, k, v = heads(tokens, counts, dim, v_dim, dtype)
    table, positions = rotary_table(64, rotary), torch.randint(0, 64, (tokens,))
    slots = torch.randperm(pages * page_size)[:tokens]
    weights = [None, None]
    if norm is not None:
        weights = [torch.randn(dim).to(torch.float32 if norm == "float32" else dtype) for _ in "qk"]
    caches = [torch.full((2, pages, counts[1], page_size, width), NAN, dtype=dtype) for width in (dim, v_dim)]
    out = rope_write(q, k, v, table, positions, caches[0][0], caches[1][0], slots, *weights, 1e-6)
    expected = rope_write_reference(q, k, v, table, positions, caches[0][1], caches[1][1], slots, *weights, 1e-6)
    tolerance = {"rtol": 2e-3, "atol": 2e-3} if dtype == torch.float16 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(out, expected, **tolerance)
    for cache in caches:  # what was not written is still NaN
        torch.testing.assert_close(cache[0], cache[1], equal_nan=True, **tolerance)


def test_without_norms_rotation_rounds_like_the_textbook_graph():
    q, k, v = heads(5, (4, 2), 64, 64, torch.float16)
    table, positions = rotary_table(64, 48), torch.randint(0, 64, (5,))
    cos, sin = (part.unsqueeze(1) for part in table[positions].chunk(2, dim=-1))
    cache = torch.full((5, 2, 16, 64), NAN, dtype=torch.float16)
    out = rope_write(q, k, v, table, positions, cache, cache.clone(), torch.arange(5))
    assert torch.equal(out, rotate(q, cos, sin))
    assert torch.equal(rotate_reference(q, table, positions), rotate(q, cos, sin))


def test_rotation_depends_only_on_the_distance():
    table = rotary_table(64, 64)
    q, k, _ = heads(1, (1, 1), 64, 64, torch.float32)
    cache = torch.zeros(1, 1, 16, 64)
    products = []
    for at in (0, 7, 31):
        rotated = rope_write(q, k, k, table, torch.tensor([at + 5]), cache, cache.clone(), torch.tensor([0]))
        rope_write(q, k, k, table, torch.tensor([at]), cache, cache.clone(), torch.tensor([0]))
        products.append((rotated * cache[0, 0, 0]).sum())
    torch.testing.assert_close(torch.stack(products), products[0].expand(3), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("cache_dtype", [torch.float32, torch.float16])
def test_write_kv_stores_views_at_their_slots_and_touches_nothing_else(cache_dtype):
    _, k, v = heads(5, (2, 3), 64, 32, torch.float32)
    slots = torch.tensor([3, 0, 33, 17, 100])
    caches = [torch.full((2, 9, 3, 16, width), NAN, dtype=cache_dtype) for width in (64, 32)]
    write_kv(k, v, caches[0][0], caches[1][0], slots)
    write_kv_reference(k, v, caches[0][1], caches[1][1], slots)
    for cache in caches:
        torch.testing.assert_close(cache[0], cache[1], rtol=0, atol=0, equal_nan=True)


def test_norms_come_together_and_no_tokens_are_no_work():
    q, k, v = heads(2, (2, 1), 16, 16, torch.float32)
    table, cache, ids = rotary_table(8, 16), torch.zeros(2, 1, 16, 16), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match="together"):
        rope_write(q, k, v, table, ids, cache, cache, ids, torch.ones(16), None)
    assert rope_write(q[:0], k[:0], v[:0], table, ids[:0], cache, cache, ids[:0]).shape == (0, 2, 16)
    write_kv(k[:0], v[:0], cache, cache, ids[:0])
    assert not cache.any()
