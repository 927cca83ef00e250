"""What the page's script does with the server's messages, in Python."""

from __future__ import annotations

from typing import Any


class Screen:
    """The turns of a chat as a tab shows them."""

    def __init__(self) -> None:
        self.turns: list[dict[str, Any]] = []
        self.title = ""
        self.left = 0  # turns before these
        self.gone = False

    def take(self, messages: list[dict[str, Any]]) -> None:
        for message in messages:
            getattr(self, f"_{message['k']}")(message)

    def have(self) -> dict[str, Any]:
        last = self.turns[-1]
        return {
            "ids": [turn["id"] for turn in self.turns],
            "answer": last["answer"].finished,
            "thought": last["thought"].finished,
        }

    def forget_open_ends(self) -> None:
        for turn in self.turns:
            turn["answer"].open = turn["thought"].open = ""

    def _chat(self, message: dict[str, Any]) -> None:
        self.title, self.left = message["title"], message["left"]
        if not message.get("resumed"):
            self.turns = []
            for turn in message["turns"]:
                self._turn({"turn": turn})

    def _turn(self, message: dict[str, Any]) -> None:
        turn = dict(message["turn"])
        turn["answer"], turn["thought"] = Column(turn.get("answer", [])), Column(turn.get("thought", []))
        self.turns.append(turn)

    def _drop(self, message: dict[str, Any]) -> None:
        at = next(at for at, turn in enumerate(self.turns) if turn["id"] == message["from"])
        del self.turns[at:]

    def _earlier(self, message: dict[str, Any]) -> None:
        newer, self.turns, self.left = self.turns, [], message["left"]
        for turn in message["turns"]:
            self._turn({"turn": turn})
        self.turns += newer

    def _p(self, message: dict[str, Any]) -> None:
        turn = next(turn for turn in self.turns if turn["id"] == message["id"])
        for key, column in (("a", "answer"), ("r", "thought")):
            if key in message:
                turn[column].patch(message[key])

    def _about(self, message: dict[str, Any]) -> None:
        turn = next(turn for turn in self.turns if turn["id"] == message["id"])
        turn.update({key: value for key, value in message.items() if key not in ("k", "id")})

    def _places(self, message: dict[str, Any]) -> None:
        for id, version, versions in message["places"]:
            turn = next(turn for turn in self.turns if turn["id"] == id)
            turn.update(version=version, versions=versions)

    def _gone(self, message: dict[str, Any]) -> None:
        self.gone = True


class Column:
    def __init__(self, blocks: list[str]) -> None:
        self.blocks = list(blocks)
        self.open = ""
        self.finished = len(blocks)

    def patch(self, patch: list[Any]) -> None:
        first, keep, rest, *more = patch
        kept = self.open.encode("utf-16-le")[: 2 * keep].decode("utf-16-le")
        assert first <= self.finished
        self.blocks[first:] = [kept + rest, *more]
        self.finished = len(self.blocks) - 1
        self.open = self.blocks[-1]
        if not self.open:
            self.blocks.pop()
