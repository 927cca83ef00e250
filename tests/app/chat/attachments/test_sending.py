"""Attached files on their way into the prompt."""

from __future__ import annotations

import pytest

from octavo.app.chat.attachments import AttachmentError, ReadFile, Tray, with_attachments
from octavo.app.chat.attachments.types import MOST_FILES
from octavo.app.chat.types import Attachment


def test_files_stand_before_the_message_each_with_its_name() -> None:
    files = [Attachment("a.py", "text/plain", 3, "print(1)\n"), Attachment("b.pdf", "application/pdf", 0, "Beta")]
    expected = "File: a.py\n```\nprint(1)\n```\n\nFile: b.pdf\n```\nBeta\n```\n\nWhat do they do?"
    assert with_attachments("What do they do?", files) == expected
    assert with_attachments("  ", files[:1]) == "File: a.py\n```\nprint(1)\n```"
    assert with_attachments("as it is", ()) == "as it is"


def test_no_file_can_end_its_own_fence() -> None:
    text = "# How to\n```sh\nls\n```\n  `````\nend"
    block = with_attachments("", [Attachment("readme.md", "text/plain", 0, text)])
    fence = block.splitlines()[1]
    assert fence == "``````"
    assert block.splitlines().count(fence) == 2
    assert text in block


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
