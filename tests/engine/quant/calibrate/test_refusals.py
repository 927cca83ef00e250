"""What cannot be: said in one sentence with what helps, before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo.engine.quant.calibrate.errors import QuantizeError
from octavo.engine.quant.calibrate.run import Job, quantize
from octavo.engine.quant.calibrate.settings import Settings
from octavo.engine.quant.calibrate.text import cut_text, read_text

MakeJob = Callable[..., Job]


def silent(line: str) -> None:
    del line


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "quip"}, r"--method is 'quip'.*awq, gptq, smoothquant, rtn"),
        ({"bits": 3}, r"--bits is 3.*4, 8"),
        ({"group": 100}, r"--group-size is 100.*128, 64, 32, 0"),
        ({"file_format": "gguf"}, r"--format is 'gguf'.*compressed-tensors, awq"),
        ({"method": "smoothquant", "bits": 4}, r"SmoothQuant.*8 bits.*--method awq"),
        ({"method": "smoothquant", "symmetric": False}, r"SmoothQuant.*symmetric"),
        ({"method": "smoothquant", "group": 64}, r"SmoothQuant.*one scale a row"),
        ({"method": "smoothquant", "file_format": "awq"}, r"--format compressed-tensors"),
        ({"method": "smoothquant", "alpha": 1.5}, r"--alpha is 1.5"),
        ({"file_format": "awq", "bits": 8}, r"AWQ files hold 4 bits.*--bits 4"),
        ({"file_format": "awq", "symmetric": True}, r"AWQ files always have zero points.*--asymmetric"),
        ({"bits": 8, "symmetric": False}, r"--symmetric"),
    ],
)
def test_settings_that_no_reader_would_understand_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(QuantizeError, match=message):
        Settings(**settings).checked()


@pytest.mark.parametrize(
    ("settings", "width", "message"),
    [
        ({"group": 128}, 344, r"Groups of 128 do not divide the 344 columns of b.*--bits 8"),
        ({"group": 128}, 192, r"Groups of 128 do not divide the 192 columns of b.*--group-size 64"),
        ({}, 100, r"Groups of 32 do not divide the 100 columns of b.*--bits 8"),
        ({"bits": 8}, 63, r"63 columns of b do not fill whole words.*model\.quantization"),
    ],
)
def test_a_group_size_that_does_not_divide_is_refused_with_one_that_does(
    settings: dict[str, Any], width: int, message: str
) -> None:
    with pytest.raises(QuantizeError, match=message):
        Settings(**settings).resolved({"a": (128, 256), "b": (128, width)})


def test_the_group_size_is_the_largest_that_divides_all_rows() -> None:
    assert Settings().resolved({"a": (8, 896), "b": (8, 4864)}).group == 128
    assert Settings().resolved({"a": (8, 576), "b": (8, 1536)}).group == 64
    assert Settings(bits=8).resolved({"a": (8, 344)}).group == 0
    with pytest.raises(QuantizeError, match="eight rows together, and b has 100"):
        Settings(file_format="awq").resolved({"a": (8, 128), "b": (100, 128)})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"There is no file .*text\.txt"),
        (b"\xff\xfet\x00e\x00x\x00t\x00", r"UTF-16.*Save it as UTF-8"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), r"not text in UTF-8 \(byte 0\)"),
        (b"GGUF\x03\x00\x00\x00", r"zero bytes"),
    ],
)
def test_a_file_that_is_no_text_is_refused(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(QuantizeError, match=message):
        read_text(path)


def test_a_folder_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(QuantizeError, match="cannot be read"):
        read_text(tmp_path)


def test_a_byte_order_mark_is_not_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_bytes(b"\xef\xbb\xbfText \xc3\xa9")
    assert read_text(tmp_path / "text.txt") == "Text é"


class Letters:
    """A tokenizer whose tokens are code points."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]


def test_windows_are_spread_over_the_text_and_the_last_tenth_is_held_back() -> None:
    text = "".join(chr(1000 + n) for n in range(10_000))
    cut = cut_text(Letters(), text, "a text", 1024, 256, None)  # type: ignore[arg-type]
    assert cut.windows.shape == (4, 256)
    starts = (cut.windows[:, 0] - 1000).tolist()
    assert starts[0] == 0
    assert starts[-1] > 6000
    assert all(row.tolist() == list(range(int(row[0]), int(row[0]) + 256)) for row in cut.windows)
    assert cut.held_out == tuple(range(10_000, 11_000))
    other = cut_text(Letters(), text, "a text", 1024, 256, "measure")  # type: ignore[arg-type]
    assert len(other.held_out) == 7
    assert len(other.windows) == 4


def test_too_little_text_is_refused_with_the_numbers() -> None:
    with pytest.raises(QuantizeError, match=r"a text has 900 tokens.*at least 1,024.*longer text"):
        cut_text(Letters(), "x" * 1000, "a text", 1024, 256, None)  # type: ignore[arg-type]
    with pytest.raises(QuantizeError, match="--eval"):
        cut_text(Letters(), "x" * 2000, "a text", 1024, 256, "")  # type: ignore[arg-type]


def test_what_exists_is_never_written_over(job: MakeJob) -> None:
    wish = job("rtn")
    wish.out.mkdir()
    (wish.out / "mine.txt").write_text("mine", encoding="utf-8")
    for resume in (False, True):
        with pytest.raises(QuantizeError, match="exists already"):
            quantize(replace(wish, resume=resume), silent)
    assert [file.name for file in wish.out.iterdir()] == ["mine.txt"]
    with pytest.raises(QuantizeError, match="There is no folder"):
        quantize(replace(wish, out=wish.out / "not" / "there"), silent)


def test_an_empty_folder_may_be_filled_and_its_model_is_not_quantized_again(job: MakeJob) -> None:
    wish = job("rtn", group=32)
    wish.out.mkdir()
    quantize(wish, silent)
    again = job("rtn", model=wish.out, out="again")
    with pytest.raises(QuantizeError, match=r"quantized already \(compressed-tensors\).*made from"):
        quantize(again, silent)
    assert not list(wish.out.parent.glob("again*"))
