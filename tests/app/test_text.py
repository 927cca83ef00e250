"""Text from outside: JSON with halves of surrogate pairs, and JSON so large that others want a turn meanwhile."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import pytest
from starlette.requests import Request

from octavo.app.api import body
from octavo.app.text import LARGE, read_json, without_halves

HALF, MENDED = "\ud83d", "\ufffd"
LONG = "x" * (LARGE + 1)


@pytest.mark.parametrize("padding", ["", LONG], ids=["short", "long"])
@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (f"a{HALF}b", f"a{MENDED}b"),
        ("\ud83d\ude00", "😀"),
        ([[f"{HALF}"], {"k": f"{HALF}"}], [[MENDED], {"k": MENDED}]),
        (
            {f"n{HALF}": {"inner": [1, 2.5, None, True, f"{HALF}"]}},
            {f"n{MENDED}": {"inner": [1, 2.5, None, True, MENDED]}},
        ),
        ({f"{HALF}": 1, "b": 2}, {MENDED: 1, "b": 2}),
        ({"灯塔": "é 😀 \\ud83d in words"}, {"灯塔": "é 😀 \\ud83d in words"}),
    ],
)
def test_halves_are_mended_wherever_they_are(value: Any, wanted: Any, padding: str) -> None:
    value, wanted = [value, padding], [wanted, padding]
    for escaped in (True, False):
        text = json.dumps(value, ensure_ascii=escaped)
        forms: list[str | bytes] = [text]
        forms += [text.encode(encoding, "surrogatepass") for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-32-be")]
        for form in forms:
            assert read_json(form) == wanted
    assert list(read_json('{"b": 1, "\\uD83D": 2, "a": 3}')) == ["b", MENDED, "a"]


def test_capital_escapes_count_too() -> None:
    assert read_json(b'["\\uD83D", "\\uD83D\\uDE00"]') == [MENDED, "😀"]


def test_whole_numbers_of_a_long_text_stay_what_they_are() -> None:
    values = [0, -7, 10**30, 1.5, 1e300, LONG]
    assert read_json(json.dumps(values).encode()) == values


@pytest.mark.parametrize("cut", range(-3, 4))
def test_characters_across_the_pieces_of_a_long_text_stay_whole(cut: int) -> None:
    text = "a" * ((1 << 20) + cut) + "灯😀é" * 400_000
    assert read_json(json.dumps([text], ensure_ascii=False).encode()) == [text]


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"\xff\xfe\xfd", b'["\xc3"]', b"[1,]", LONG.encode(), b'["' + b"\xff" * LARGE]
)
def test_what_is_no_json_is_a_value_error(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"^(Expecting|Illegal|.*codec can't decode)"):
        read_json(raw)


def test_nesting_without_end_is_a_recursion_error_however_long() -> None:
    for depth in (100_000, LARGE + 1):
        with pytest.raises(RecursionError):
            read_json(b"[" * depth)


def test_others_have_their_turn_while_a_long_text_is_read() -> None:
    turns = [{"id": str(n), "text": "a lighthouse keeper 灯塔 " * 8, "tokens": n} for n in range(30_000)]
    raw = json.dumps({"chats": turns}).encode()
    shares = []
    for _ in range(4):
        took: list[float] = []

        def read(took: list[float] = took) -> None:
            begun = time.perf_counter()
            read_json(raw)
            took.append(time.perf_counter() - begun)

        reader = threading.Thread(target=read)
        reader.start()
        longest, last = 0.0, time.perf_counter()
        while reader.is_alive():
            time.sleep(0.001)
            longest, last = max(longest, time.perf_counter() - last), time.perf_counter()
        shares.append(longest / took[0])
    assert min(shares) < 0.4  # of the time it took; with one call of C nearly all of it


def test_mending_is_what_a_single_text_gets() -> None:
    assert read_json(json.dumps(HALF)) == without_halves(HALF) == MENDED


@pytest.mark.parametrize(("size", "aside"), [(10, False), (LARGE, True)])
def test_a_large_body_is_read_in_a_thread_of_its_own(size: int, aside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    readers: list[threading.Thread] = []

    def read(raw: bytes) -> Any:
        readers.append(threading.current_thread())
        return read_json(raw)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps({"text": "x" * size}).encode()}

    monkeypatch.setattr(body, "read_json", read)
    values = asyncio.run(body.read_body(Request({"type": "http"}, receive)))
    assert values.text("text") == "x" * size
    assert (readers != [threading.current_thread()]) == aside
