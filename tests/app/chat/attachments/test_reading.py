"""Files become text with what matters kept; what is broken, hostile or no text is refused in one sentence."""

from __future__ import annotations

import contextlib
import io
import struct
import zipfile
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.app.chat.attachments import AttachmentError, read_file
from octavo.app.chat.attachments import docx as docx_reader
from octavo.app.chat.attachments.apart import read_apart
from octavo.app.chat.attachments.plain import decode
from octavo.app.chat.attachments.reading import clean_name
from octavo.app.chat.attachments.types import LARGEST_FILE_BYTES, LONGEST_TEXT

W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
STRICT = "http://purl.oclc.org/ooxml/wordprocessingml/main"
MC = "http://schemas.openxmlformats.org/markup-compatibility/2006"


def docx(body: str, *, head: str = "", space: str = W, part: str = "word/document.xml") -> bytes:
    xml = f'<?xml version="1.0" encoding="UTF-8"?>{head}<w:document xmlns:w="{space}" xmlns:mc="{MC}"><w:body>{body}'
    return packed({"[Content_Types].xml": "<Types/>", part: f"{xml}</w:body></w:document>"})


def packed(parts: dict[str, str]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as package:
        for name, text in parts.items():
            package.writestr(name, text)
    return out.getvalue()


def paragraph(text: str, properties: str = "") -> str:
    return f"<w:p><w:pPr>{properties}</w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>"


WORD_FILE = docx(paragraph("some text") + "<w:tbl><w:tr><w:tc>" + paragraph("cell") + "</w:tc></w:tr></w:tbl>")


def pdf(*pages: str, trailer: str = "") -> bytes:
    """A small PDF (ISO 32000-1) with one line of text on each page; "" makes a page without text."""
    count = len(pages)
    kids = " ".join(f"{4 + 2 * at} 0 R" for at in range(count))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {count} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
    ]
    for at, text in enumerate(pages):
        content = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET" if text else "0 0 m"
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {5 + 2 * at} 0 R"
            " /Resources << /Font << /F1 3 0 R >> >> >>"
        )
        objects.append(f"<< /Length {len(content)} >>\nstream\n{content}\nendstream")
    return assembled([item.encode("latin-1") for item in objects], trailer)


def assembled(objects: list[bytes], trailer: str = "") -> bytes:
    out = b"%PDF-1.4\n"
    offsets = []
    for number, item in enumerate(objects, start=1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%b\nendobj\n" % (number, item)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    start = len(out)
    size = len(objects) + 1
    return (
        out
        + b"xref\n0 %d\n0000000000 65535 f \n%b" % (size, table)
        + b"trailer\n<< /Size %d /Root 1 0 R %b >>\nstartxref\n%d\n%%%%EOF" % (size, trailer.encode(), start)
    )


@pytest.mark.parametrize(
    ("data", "text", "guessed"),
    [
        ("héllo\r\nworld\rend".encode(), "héllo\nworld\nend", None),
        (b"\xef\xbb\xbfmarked", "marked", None),
        ("日本語".encode("utf-16"), "日本語", None),
        ("plain text without a mark".encode("utf-16-le"), "plain text without a mark", "UTF-16"),
        ("你好，世界。这是一段旧文本。".encode("gb18030"), "你好，世界。这是一段旧文本。", "GB 18030"),
        ("Grüße aus München".encode("cp1252"), "Grüße aus München", "Windows-1252"),
        ("fünf Öllampen".encode("cp1252"), "fünf Öllampen", "Windows-1252"),
        ("裡面說這個體驗".encode("gb18030"), "裡面說這個體驗", "GB 18030"),
        (b"\x1b[31mred\x1b[0m log\n", "\x1b[31mred\x1b[0m log\n", None),
        (b"BM is how this sentence begins", "BM is how this sentence begins", None),
    ],
)
def test_texts_are_read_in_the_encoding_they_are_in(data: bytes, text: str, guessed: str | None) -> None:
    file = read_file("notes.txt", data)
    assert (file.kind, file.text) == ("text", text)
    assert (guessed in file.remarks[0].text) if guessed else file.remarks == ()


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.png", b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", "a picture"),
        ("movie.mp4", b"\x00\x00\x00\x20ftypisom\x00\x00", "a film"),
        ("a.tar.gz", b"\x1f\x8b\x08\x00\x00\x00", "archive"),
        ("noise.txt", bytes(range(256)) * 20, "not a text"),
        ("old.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(64), "old Office file or has a password"),
        ("table.xlsx", packed({"xl/workbook.xml": "<x/>"}), "a spreadsheet"),
        ("stuff.zip", packed({"a.txt": "a"}), "a packed archive"),
        ("empty.txt", b"", "is empty"),
        ("blank.md", b" \n\t\n", "no text"),
        ("big.txt", b"a" * (LARGEST_FILE_BYTES + 1), "20 MiB at most"),
        ("long.txt", b"a" * (LONGEST_TEXT + 1), "1,000,000 characters"),
    ],
)
def test_what_is_no_text_is_refused_in_one_sentence_that_names_it(name: str, data: bytes, said: str) -> None:
    with pytest.raises(AttachmentError, match=said) as caught:
        read_file(name, data)
    assert caught.value.message.startswith(name)
    assert caught.value.message.count(". ") == 0


def test_a_word_file_keeps_headings_lists_and_tables() -> None:
    cell = "<w:tc><w:p><w:r><w:t>{}</w:t></w:r></w:p></w:tc>"
    row = "<w:tr>{}</w:tr>"
    body = (
        paragraph("Report", '<w:pStyle w:val="Heading1"/>')
        + "<w:p><w:pPr><w:tabs><w:tab/></w:tabs></w:pPr><w:r><w:t>One</w:t><w:tab/><w:t>two &amp; 三</w:t><w:br/>"
        "<w:t>next</w:t></w:r><w:del><w:r><w:t>gone</w:t></w:r></w:del></w:p>"
        + paragraph("first", '<w:numPr><w:ilvl w:val="0"/></w:numPr>')
        + paragraph("inner", '<w:numPr><w:ilvl w:val="1"/></w:numPr>')
        + "<mc:AlternateContent><mc:Choice><w:p><w:r><w:t>box</w:t></w:r></w:p></mc:Choice>"
        "<mc:Fallback><w:p><w:r><w:t>box</w:t></w:r></w:p></mc:Fallback></mc:AlternateContent>"
        + "<w:tbl>"
        + row.format(cell.format("a|b") + cell.format("c"))
        + row.format(cell.format("1"))
        + "</w:tbl>"
    )
    expected = "# Report\n\nOne\ttwo & 三\nnext\n\n- first\n  - inner\n\nbox\n\n| a\\|b | c |\n| --- | --- |\n| 1 |  |"
    for space in (W, STRICT):
        file = read_file("report.docx", docx(body, space=space))
        assert (file.kind, file.text) == ("docx", expected)


def test_a_pdf_names_its_pages_and_says_which_have_no_text() -> None:
    file = read_file("paper.pdf", pdf("Alpha", "", "Gamma"))
    assert file.kind == "pdf"
    assert file.text == "[page 1]\nAlpha\n\n[page 3]\nGamma"
    assert [remark.text for remark in file.remarks] == ["paper.pdf: no text could be read from page 2."]


ENTITIES = "<!DOCTYPE d [" + "".join(
    f'<!ENTITY e{n} "{f"&e{n - 1};" * 10 if n else "ha" * 10}">' for n in range(12)
) + "]>"  # fmt: skip
OUTSIDE = '<!DOCTYPE d [<!ENTITY f SYSTEM "file:///etc/hostname">]>'


@pytest.mark.parametrize(
    ("head", "text"), [(ENTITIES, "&e11;"), (OUTSIDE, "&f;"), ('<!DOCTYPE d SYSTEM "http://127.0.0.1:1/d.dtd">', "x")]
)
def test_entities_in_a_word_file_are_refused_before_they_mean_anything(head: str, text: str) -> None:
    with pytest.raises(AttachmentError, match="document type"):
        read_file("evil.docx", docx(paragraph(text), head=head))


def test_a_zip_bomb_is_given_up_for_its_size_not_for_its_time() -> None:
    with pytest.raises(AttachmentError, match="far larger inside"):
        read_file("bomb.docx", docx(f"<w:p>{' ' * 200_000_000}</w:p>"))


def test_a_word_file_of_one_endless_paragraph_is_called_too_long() -> None:
    text = "a" * (LONGEST_TEXT + 1)
    for body in (paragraph(text), f"<w:tbl><w:tr><w:tc>{paragraph(text)}</w:tc></w:tr></w:tbl>"):
        with pytest.raises(AttachmentError, match="characters of text"):
            read_file("long.docx", docx(body + "<w:p/>" * 100_000))


def test_a_pdf_that_unpacks_without_end_fails_alone() -> None:
    inner = zlib.compress(zlib.compress(bytes(400_000_000), 9), 9)
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 4 0 R >>",
        b"<< /Length %d /Filter [/FlateDecode /FlateDecode] >>\nstream\n%b\nendstream" % (len(inner), inner),
    ]
    with pytest.raises(AttachmentError, match=r"bomb\.pdf"):
        read_file("bomb.pdf", assembled(objects))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("cut.docx", docx(paragraph("text " * 500))[:300]),
        ("bad.docx", packed({"word/document.xml": "<w:document><unclosed>"})),
        ("deep.docx", docx("<w:p>" * 5000)),
        ("cut.pdf", pdf("Alpha")[:80]),
        ("loop.pdf", pdf("Alpha").replace(b"/Kids [4 0 R]", b"/Kids [2 0 R]")),
        ("noise.pdf", b"%PDF-1.7\n" + bytes(range(256)) * 50),
        ("locked.pdf", pdf("Alpha", trailer="/Encrypt << /Filter /Standard /V 5 /R 6 /Length 256 >> /ID [<00><00>]")),
        ("scan.pdf", pdf("", "")),
    ],
)
def test_damaged_files_are_refused_by_their_names(name: str, data: bytes) -> None:
    with pytest.raises(AttachmentError) as caught:
        read_file(name, data)
    assert name in caught.value.message
    assert "{" not in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_a_reader_that_takes_too_long_is_ended() -> None:
    with pytest.raises(AttachmentError, match="took longer"):
        read_apart("slow.pdf", "pdf", pdf("Alpha"), longest_s=0.001)


def test_names_lose_folders_and_marks_that_turn_what_follows() -> None:
    assert clean_name("C:\\Users\\me\\notes.txt") == "notes.txt"
    assert clean_name("../../etc/passwd") == "passwd"
    assert clean_name("invoice\u202efdp.exe") == "invoicefdp.exe"
    assert clean_name("a\x00\nb\tc.md") == "abc.md"
    assert clean_name("///") == "file"
    assert clean_name("u\u0308ber.md") == "über.md"
    long = clean_name("报告" * 200 + ".docx")
    assert len(long) == 120
    assert long.endswith("….docx")


def test_a_picture_with_a_texts_name_is_still_a_picture() -> None:
    data = b"\xff\xd8\xff\xe0" + struct.pack(">H", 16) + b"JFIF\x00" + bytes(100)
    with pytest.raises(AttachmentError, match="a picture"):
        read_file("notes.txt", data)


@given(st.binary(max_size=400))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_a_text_or_refused(data: bytes) -> None:
    try:
        text, _ = decode("x", data)
    except AttachmentError:
        return
    assert "\x00" not in text
    text.encode("utf-8")


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=8))
@settings(max_examples=150, deadline=None)
def test_a_word_file_with_wrong_bytes_is_read_or_refused(changes: list[tuple[int, int]]) -> None:
    data = bytearray(WORD_FILE)
    for at, value in changes:
        data[at % len(data)] = value
    with contextlib.suppress(docx_reader.Refused):
        text, _ = docx_reader.read(io.BytesIO(bytes(data)))
        assert isinstance(text, str)
