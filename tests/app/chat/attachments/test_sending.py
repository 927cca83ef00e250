"""Attached files on their way into the prompt and into the store."""

from __future__ import annotations

import json

import pytest

from octavo.app.chat.attachments import Attachment, AttachmentError, ReadFile, Tray, with_attachments
from octavo.app.chat.attachments.types import MOST_FILES, from_json, to_json


def test_files_stand_before_the_message_each_with_its_name() -> None:
    files = [Attachment("a.py", "text", "print(1)\n", 3), Attachment("b.pdf", "pdf", "Beta")]
    expected = "File: a.py\n```\nprint(1)\n```\n\nFile: b.pdf\n```\nBeta\n```\n\nWhat do they do?"
    assert with_attachments("What do they do?", files) == expected
    assert with_attachments("  ", files[:1]) == "File: a.py\n```\nprint(1)\n```"
    assert with_attachments("as it is", ()) == "as it is"


def test_no_file_can_end_its_own_fence() -> None:
    text = "# How to\n```sh\nls\n```\n  `````\nend"
    block = with_attachments("", [Attachment("readme.md", "text", text)])
    fence = block.splitlines()[1]
    assert fence == "``````"
    assert block.splitlines().count(fence) == 2
    assert text in block


def test_attachments_survive_the_store_and_unknown_fields_do_no_harm() -> None:
    files = (Attachment("山.docx", "docx", "text\n", 7),)
    stored = json.loads(json.dumps(to_json(files)))
    assert from_json(stored) == files
    assert from_json([{**stored[0], "later": 1, "kind": "epub", "tokens": None}]) == (
        Attachment("山.docx", "text", "text\n", 0),
    )
    assert from_json([1, {"name": "x"}, None]) == ()
    assert from_json("nothing") == ()


def test_a_tray_hands_files_out_until_they_are_dropped() -> None:
    tray = Tray()
    first, second = tray.put(ReadFile("a", "text", "a")), tray.put(ReadFile("b", "text", "b"))
    assert [file.name for file in tray.take([second, first])] == ["b", "a"]
    tray.drop([first, "never there"])
    with pytest.raises(AttachmentError, match="no longer held"):
        tray.take([first])
    with pytest.raises(AttachmentError, match="20 files"):
        tray.take([second] * (MOST_FILES + 1))


def test_a_full_tray_forgets_the_file_that_was_not_used_for_longest() -> None:
    tray = Tray(largest=10)
    first, second = tray.put(ReadFile("a", "text", "a" * 4)), tray.put(ReadFile("b", "text", "b" * 4))
    assert tray.get(first) is not None
    third = tray.put(ReadFile("c", "text", "c" * 4))
    assert tray.get(second) is None
    assert tray.get(first) is not None
    assert tray.get(third) is not None
    large = tray.put(ReadFile("d", "text", "d" * 50))
    assert tray.get(large) is not None  # one file is always kept
