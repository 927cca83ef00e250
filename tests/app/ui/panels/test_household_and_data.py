"""Opening the house and closing it; the user's data copied, moved and deleted in one place."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from octavo.app.chat.store import ChatStore
from octavo.app.data_files import CHATS, MOVE_NOTE, DataError, finish_move, prepare_move
from octavo.app.ui.panels.household import GROUP, GROUPS, addresses, make_key

if TYPE_CHECKING:
    from tests.app.ui.panels.conftest import House as Running

House = Callable[..., "Running"]
HOUSEHOLD, DATA = "/api/ui/household", "/api/ui/data"


def test_opening_the_house_makes_a_key_and_says_it_once(house: House) -> None:
    here = house()
    key = here.client.post(HOUSEHOLD, json={"open": True}).json()["key"]
    server = here.settings.values.server
    assert server.host == "0.0.0.0"
    assert server.api_key is not None
    assert server.api_key.get_secret_value() == key
    state = here.get(HOUSEHOLD)
    assert (state["open"], state["in_force"], state["has_key"]) == (True, False, True)
    assert key not in json.dumps(state)
    assert here.client.post(HOUSEHOLD, json={"open": True}).json()["key"] is None
    other = here.client.post(HOUSEHOLD, json={"open": True, "new_key": True}).json()["key"]
    assert other != key
    assert here.client.post(HOUSEHOLD, json={"open": False}).json() == {"key": None}
    assert here.settings.values.server.host == "127.0.0.1"
    assert here.settings.values.server.api_key is not None  # programs may use it
    assert here.get(HOUSEHOLD)["has_key"] is True
    here.client.post(HOUSEHOLD, json={"open": False, "drop_key": True})
    assert here.settings.values.server.api_key is None
    state = here.get(HOUSEHOLD)
    assert (state["has_key"], state["key_fixed_by"], state["in_force"]) == (False, None, True)


def test_a_house_is_opened_from_inside(house: House) -> None:
    here = house("server: {api_key: open-sesame}")
    answer = here.client.post(HOUSEHOLD, json={"open": True}, headers=here.from_elsewhere())
    assert answer.status_code == 403
    assert here.settings.values.server.host == "127.0.0.1"


def test_a_flag_that_fixes_the_address_is_named(house: House) -> None:
    state = house(server__host="127.0.0.1").get(HOUSEHOLD)
    assert (state["fixed_by"], state["key_fixed_by"]) == ("--host", None)


def test_keys_can_be_read_aloud_and_differ() -> None:
    keys = {make_key() for _ in range(100)}
    assert len(keys) == 100
    for key in keys:
        groups = key.split("-")
        assert [len(group) for group in groups] == [GROUP] * GROUPS
        assert not set(key) & set("01ilo")
    assert not any(address.startswith("127.") for address in addresses())


def test_the_copy_is_a_whole_database_and_has_no_key(house: House) -> None:
    here = house("server:\n  api_key: open-sesame\napp: {theme: dark}\n")
    chat = here.service.create_chat()
    here.service.store.add_message(chat.id, "user", "remember me")
    answer = here.client.get(f"{DATA}/export")
    assert answer.headers["content-disposition"].startswith("attachment; filename=")
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert "open-sesame" not in archive.read("config.yaml").decode()
        assert "theme: dark" in archive.read("config.yaml").decode()
        copy = Path(str(here.settings.path.parent)) / "copy.sqlite3"
        copy.write_bytes(archive.read(CHATS))
    store = ChatStore(copy)
    assert [message.content for message in store.get_chat(chat.id).messages] == ["remember me"]  # type: ignore[union-attr]
    store.close()
    assert list((here.settings.path.parent / "cache" / "export").iterdir()) == []


def test_where_everything_is_and_how_large(house: House) -> None:
    here = house()
    here.service.create_chat()
    state = here.get(DATA)
    assert state["chats"] == 1
    assert state["places"]["chats"]["size"] > 0
    assert state["places"]["settings"]["path"] == str(here.settings.path)


def test_a_deleted_chat_leaves_no_word_in_the_file(house: House) -> None:
    here = house()
    chat = here.service.create_chat()
    here.service.store.add_message(chat.id, "user", "a word nobody else says: xylophagous")
    log = here.settings.path.parent / "log" / "octavo.log"
    log.parent.mkdir()
    log.write_text("old line\n", encoding="utf-8")
    assert here.client.post(f"{DATA}/delete", json={"what": ["chats", "log"]}).status_code == 200
    assert here.get(DATA)["chats"] == 0
    folder = here.settings.path.parent / "data"
    assert not any(b"xylophagous" in path.read_bytes() for path in folder.glob(f"{CHATS}*"))
    assert log.read_text(encoding="utf-8") == ""


@pytest.mark.parametrize("what", [None, [], ["everything"], "chats", ["chats", "settings"], [["chats"]], [{}]])
def test_only_what_is_named_is_deleted(house: House, what: object) -> None:
    here = house()
    here.service.create_chat()
    assert here.client.post(f"{DATA}/delete", json={"what": what}).status_code == 400
    assert here.get(DATA)["chats"] == 1


def test_another_device_may_not_move_or_delete(house: House) -> None:
    here = house("server: {api_key: open-sesame}")
    for route, body in (("delete", {"what": ["chats"]}), ("move", {"folder": "/tmp/elsewhere"})):
        assert here.client.post(f"{DATA}/{route}", json=body, headers=here.from_elsewhere()).status_code == 403


def test_moving_is_prepared_now_and_done_at_the_next_start(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = house()
    assert here.client.post(f"{DATA}/move", json={"folder": "/x"}).json()["error"]["code"] == "fixed"
    monkeypatch.delenv("OCTAVO_DATA_DIR")
    target = tmp_path / "new home"
    assert here.client.post(f"{DATA}/move", json={"folder": str(target)}).status_code == 200
    assert here.settings.values.app.data_folder == str(target)
    assert here.get(DATA)["next_folder"] == str(target)
    assert (target / MOVE_NOTE).exists()


def filled(folder: Path) -> str:
    folder.mkdir()
    store = ChatStore(folder / CHATS)
    chat = store.create_chat()
    store.add_message(chat.id, "user", "hello")
    store.close()
    return chat.id


def test_the_chats_follow_whole_and_leave_nothing_behind(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    chat_id = filled(old)
    (old / "other.txt").write_text("not ours", encoding="utf-8")
    assert prepare_move(old, str(new)) == new
    said = finish_move(new)
    assert said is not None
    assert str(new) in said
    assert [path.name for path in old.iterdir()] == ["other.txt"]
    assert [path.name for path in new.iterdir()] == [CHATS]
    store = ChatStore(new / CHATS)
    assert store.get_chat(chat_id).messages[0].content == "hello"  # type: ignore[union-attr]
    store.close()
    assert finish_move(new) is None


def test_a_move_that_was_cut_off_is_finished_at_the_next_start(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    filled(old)
    prepare_move(old, str(new))
    (new / f"{CHATS}.part").write_bytes(b"half a copy")
    assert finish_move(new) is not None
    assert sqlite3.connect(new / CHATS).execute("SELECT count(*) FROM chats").fetchone() == (1,)


def test_a_database_that_cannot_be_copied_stays_where_it_is(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    (old / CHATS).write_bytes(b"this is no database" * 100)
    prepare_move(old, str(new))
    with pytest.raises(DataError):
        finish_move(new)
    assert (old / CHATS).exists()
    assert not (new / CHATS).exists()
    assert (new / MOVE_NOTE).exists()  # it is tried again


def test_a_folder_that_will_not_do_is_refused_with_the_reason(tmp_path: Path) -> None:
    old = tmp_path / "old"
    filled(old)
    other = tmp_path / "other"
    filled(other)
    with pytest.raises(DataError, match="complete path"):
        prepare_move(old, "somewhere")
    with pytest.raises(DataError, match="already"):
        prepare_move(old, str(old))
    with pytest.raises(DataError, match="chats of its own"):
        prepare_move(old, str(other))
    if os.name == "posix" and os.geteuid() != 0:
        with pytest.raises(DataError, match="cannot be written"):
            prepare_move(old, "/proc/nowhere")
