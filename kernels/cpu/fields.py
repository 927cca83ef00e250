"""What the compiled decode step is told: places in tables of int64 that the caller fills.

Addresses are of memory that the caller keeps alive; R rows, H hidden size, I inner size, D head size.
"""

from __future__ import annotations

from typing import NamedTuple


class _Step(NamedTuple):
    """The head of the table."""

    ROWS: int = 0
    TEAM: int = 1  # threads that may take part
    COUNTERS: int = 2  # int64 [phases, TEAM + 1] at 64 bytes each, zero at the beginning
    SCRATCH: int = 3  # TEAM pieces of SCRATCH_SIZE bytes
    SCRATCH_SIZE: int = 4
    BLOCK_ROWS: int = 5  # int64 [R]: rows of the block that begins at a row
    POSITIONS: int = 6  # int64 [R]
    KV_LENGTHS: int = 7  # int32 [R]
    GROUPS: int = 8  # int64 [groups, Group]
    LAYERS: int = 9  # int64 [layers, Layer]
    NUM_LAYERS: int = 10
    FACTORS: int = 11  # float32 [Factor]
    HIDDEN: int = 12  # float32 [R, H] and room for as much again
    QKV: int = 13  # float32 [R, (Hq + 2 Hkv) D]
    ATTENDED: int = 14  # [R, Hq D] for a product
    INNER: int = 15  # [R, I] for a product
    DELTA: int = 16  # float32 [R, H]
    OUT: int = 17  # [R, H] in the weights' dtype
    FINAL_NORM: int = 18  # float32 [H]
    WIDTH: int = 19  # H
    INNER_WIDTH: int = 20  # I
    Q_HEADS: int = 21
    KV_HEADS: int = 22
    HEAD_SIZE: int = 23
    PAGE_SIZE: int = 24
    ACT: int = 25  # 0 SiLU, 1 GELU by tanh
    COLUMNS: int = 26  # 0, or of the tile unit: ROWS rounded up
    TILES: int = 27  # the unit's configuration for so many columns; 0 where it has nothing to do
    HEAD: int = 28  # int64 [Linear]: [VOCABULARY, H]
    VOCABULARY: int = 29
    LOGITS: int = 30  # float32 [R, VOCABULARY]; 0: not asked for
    ORDERED: int = 31  # 1: rows attend to keys that rows before them bring in this step
    FIRST: int = 32  # row of a weight
    WHOLE: int = 33  # 0, or bytes of a thread's rows of whole numbers, with which codes are multiplied


class _Group(NamedTuple):
    """Layers that cache alike."""

    TABLE: int = 0  # int32 [R, PAGES]
    PAGES: int = 1
    SLOTS: int = 2  # int64 [R]


class _Layer(NamedTuple):
    """An address of 0 means that there is none."""

    ATTN_NORM: int = 0
    QKV: int = 1  # int64 [Linear], as are O, GATE_UP and DOWN
    Q_NORM: int = 2
    K_NORM: int = 3
    ROPE: int = 4  # float32 [positions, 2 ROPE_PAIRS]: cosines, then sines
    ROPE_PAIRS: int = 5
    K: int = 6  # [pages, Hkv, PAGE_SIZE, D]
    V: int = 7
    GROUP: int = 8
    WINDOW: int = 9  # 0: none
    O: int = 10  # noqa: E741 - the name of the projection
    ATTN_POST_NORM: int = 11
    MLP_NORM: int = 12
    GATE_UP: int = 13
    DOWN: int = 14
    MLP_POST_NORM: int = 15


class _Linear(NamedTuple):
    """A weight, row-major [out, in], and how it is stored; a block is 32 neighbours of a row."""

    FORM: int = 0  # one of Form
    ROWS: int = 1  # its numbers or codes
    STRIDE: int = 2  # bytes from row to row
    ORDER: int = 3  # how what it is multiplied with is kept: NATURAL or PARTED
    BIAS: int = 4  # [out] in the model's dtype; 0: none
    SCALES: int = 5  # INT8: float32 [out]; INT4: pairs of scale and shift [out, groups, 2]
    SCALE_STRIDE: int = 6  # bytes from row to row
    GROUP_BITS: int = 7  # INT4: a group has 2^GROUP_BITS blocks
    NARROW: int = 8  # INT4: pairs are bfloat16, else float32


class _Form(NamedTuple):
    """How the numbers of a weight are stored."""

    PLAIN: int = 0  # in the model's dtype
    INT8: int = 1  # a signed byte, times its row's scale
    INT4: int = 2  # sixteen codes in eight bytes, the first in the low bits; code * scale + shift of its group


class _Factor(NamedTuple):
    """Numbers that are no integers."""

    NORM_EPS: int = 0
    ATTN_SCALE: int = 1
    SOFTCAP: int = 2  # 0: none
    RESIDUAL: int = 3


Step, Group, Layer, Linear, Form, Factor = _Step(), _Group(), _Layer(), _Linear(), _Form(), _Factor()
NATURAL, PARTED = 0, 1  # order of 32 neighbours beside a block: as they come, or 16 even ones, then 16 odd ones
WHOLE = 2  # rows one after the other, of which each thread makes whole numbers
BYTES = 3  # as WHOLE, but one row, for vectors instead of the tile unit
SPREAD = 256  # codes of a row that are spread to bytes together: 4 KiB, and at most 8 KiB of their groups' sums
TOGETHER = 8  # rows of whole numbers that are multiplied together
_PADDING = 8192  # for what is rounded up to vectors beside rows of whole numbers
WHOLE_HEAD = 128  # bytes before them: the steps they are counted in

MAX_ROWS = 16  # more rows than that are the library's: its products read a weight once for all of them
TILED_ROWS = 5  # so many rows are worth the tile unit, but for int8: vectors are no longer done when the weights arrive
PHASES = 5  # of a layer; one more behind the last, and one for the head
LINE = 64  # bytes that processors exchange at once
KEYS = 128  # keys an attending thread looks at together
GROUP_ROWS = (8, 4, 3, 2, 1)


def row_blocks(rows: int) -> list[int]:
    """Rows of the block that begins at each row (0 elsewhere), largest blocks first."""
    found = [0] * rows
    at = 0
    while at < rows:
        found[at] = next(size for size in GROUP_ROWS if size <= rows - at)
        at += found[at]
    return found


def scratch_floats(rows: int, width: int, q_heads: int, kv_heads: int, head_size: int) -> int:
    """float32 numbers a thread needs besides its stack and rows of whole numbers: two copies of the rows, and either
    27 tiles or one unit of attention."""
    group = q_heads // kv_heads
    return 2 * rows * width + max(27 * 16 * 16, head_size * (2 * group + 1) + group * (KEYS + 2))


def whole_bytes(size: int) -> int:
    """Step.WHOLE for weights whose rows have at most so many elements; what it is made of says whole.py."""
    return WHOLE_HEAD + (MAX_ROWS // TOGETHER * (2 * TOGETHER + 2) + 4) * size + _PADDING


def tile_columns(rows: int) -> int:
    """Step.COLUMNS for so many rows where the tile unit can be used."""
    if rows < TILED_ROWS:
        return 0
    return 8 if rows <= 8 else 16


def counter_bytes(phases: int, team: int) -> int:
    """Memory of the counters."""
    return phases * (team + 1) * LINE
