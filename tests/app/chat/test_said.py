"""What the chats say to the user has the page's own words in every language."""

from __future__ import annotations

import re
from pathlib import Path

from octavo.app import chat
from octavo.app.chat.cuts import SENTENCES
from octavo.app.ui.strings import LANGUAGES

CODE = re.compile(r"""code="(\w+)"|Remark\(.*?, "(\w+)"|"(model_gone)\"""")


def test_every_reason_and_remark_has_words_of_its_own() -> None:
    (folder,) = chat.__path__
    codes = {
        next(filter(None, match.groups()))
        for path in Path(folder).glob("*.py")
        for match in CODE.finditer(path.read_text(encoding="utf-8"))
    }
    assert {"busy", "stale", "other_model", "left_out", "unsaved", "model_gone"} <= codes
    codes |= SENTENCES.keys()
    for words in LANGUAGES.values():
        known = {re.sub(r"\.(one|other)$", "", key) for key in words}
        assert {f"said.{code}" for code in codes} <= known
