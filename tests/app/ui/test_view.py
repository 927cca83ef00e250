"""A tab gets each piece of a chat once, and can go on from any position it says it has."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from screen import Column, Screen

from octavo.app.ui.feed import ChatFeed
from octavo.app.ui.render import BlockRenderer, render
from octavo.app.ui.view import Position, View, common_prefix, utf16_length

TEXT = "# A title\n\nA paragraph with **bold** 😀 text.\n\n- one\n- two\n\n```python\nprint('x')\n```\n\nThe end."


@given(st.text(alphabet="ab<😀", max_size=30), st.text(alphabet="ab<😀", max_size=30))
def test_the_common_beginning_is_found(a: str, b: str) -> None:
    length = common_prefix(a, b)
    assert a[:length] == b[:length]
    assert length == min(len(a), len(b)) or a[length] != b[length]


@given(st.lists(st.sampled_from([*TEXT, "\n\n", "😀😀", "**", "`", "- x\n", "| a |\n|---|\n"]), max_size=80), st.data())
def test_patches_rebuild_the_blocks_whenever_they_are_taken(pieces: list[str], data: st.DataObject) -> None:
    renderer, position, column = BlockRenderer(), Position(), Column([])
    for piece in pieces:
        renderer.feed(piece)
        if data.draw(st.booleans()):
            patch = position.patch(renderer)
            if patch is not None:
                column.patch(patch)
    renderer.finish()
    patch = position.patch(renderer)
    if patch is not None:
        column.patch(patch)
    assert tuple(column.blocks) == render("".join(pieces))
    assert position.patch(renderer) is None


def test_a_patch_counts_as_javascript_does() -> None:
    assert utf16_length("a😀b") == 4
    renderer, position = BlockRenderer("😀 one"), Position()
    position.patch(renderer)
    renderer.feed(" two")
    assert position.patch(renderer) == [0, len('<p dir="auto">') + 2 + 4, " two</p>"]


def test_a_tab_that_comes_and_goes_sees_the_whole_reply(house: Callable[..., Any]) -> None:
    async def play() -> None:
        async with house(script=lambda prompt: TEXT * 3, token_s=0.001) as h:
            chat = h.service.create_chat()
            feed = ChatFeed(chat.id, h.service)
            assert await feed.start()
            steady, fickle = View(feed), View(feed)
            one, two = Screen(), Screen()
            await h.service.send(chat.id, "Go on")
            random.seed(1)
            while not feed.turns or feed.turns[-1].live or len(feed.turns) < 2:
                await asyncio.sleep(0.03)
                one.take(steady.collect())
                two.take(fickle.collect())
                if two.turns and random.random() < 0.4:  # it loses its connection and says what it has
                    fickle = View(feed, two.have())
                    two.forget_open_ends()
            one.take(steady.collect())
            two.take(fickle.collect())
            late = Screen()
            late.take(View(feed).collect())
            for screen in (one, two, late):
                assert [turn["role"] for turn in screen.turns] == ["user", "assistant"]
                assert tuple(screen.turns[1]["answer"].blocks) == render(TEXT * 3)
                assert screen.turns[1]["status"] == "complete"
                assert screen.turns[1]["stats"]["reason"] == "stop"
            assert steady.collect() == []
            await feed.close()

    asyncio.run(play())


def test_another_reply_to_the_same_turn_replaces_the_first_one(house: Callable[..., Any]) -> None:
    async def play() -> None:
        answers = iter(["first", "second"])
        async with house(script=lambda prompt: next(answers)) as h:
            chat = h.service.create_chat()
            feed = ChatFeed(chat.id, h.service)
            assert await feed.start()
            view, screen = View(feed), Screen()
            await h.service.send(chat.id, "Hello")
            await settled(feed, 2)
            screen.take(view.collect())
            first = screen.turns[-1]["id"]
            second = await h.service.regenerate(chat.id)
            await settled(feed, 2, second.id)
            screen.take(view.collect())
            assert len(screen.turns) == 2
            assert screen.turns[-1]["id"] != first
            assert screen.turns[-1]["answer"].blocks == ['<p dir="auto">second</p>']
            await feed.close()

    asyncio.run(play())


def test_a_position_in_other_turns_gets_the_whole_chat(house: Callable[..., Any]) -> None:
    async def play() -> None:
        async with house() as h:
            chat = h.service.create_chat()
            feed = ChatFeed(chat.id, h.service)
            assert await feed.start()
            await h.service.send(chat.id, "Hello")
            await settled(feed, 2)
            ids = [turn.id for turn in feed.turns]
            good = {"ids": ids, "answer": 1, "thought": 0}
            assert View(feed, good).collect()[0].get("resumed")
            for wrong in (
                {"ids": ["x", ids[1]]},
                {"ids": [ids[0], "x"]},
                {"ids": []},
                {"ids": 2},
                {"answer": 9},
                {"thought": -1},
                {"answer": "1"},
            ):
                opened = View(feed, good | wrong).collect()[0]
                assert "resumed" not in opened
                assert len(opened["turns"]) == 2
            await feed.close()

    asyncio.run(play())


def test_a_long_chat_opens_with_its_newest_turns_and_shows_earlier_ones_on_demand(house: Callable[..., Any]) -> None:
    async def play() -> None:
        async with house() as h:
            chat = h.service.create_chat()
            for n in range(50):
                h.service.store.add_message(chat.id, "user" if n % 2 == 0 else "assistant", f"turn {n}")
            feed = ChatFeed(chat.id, h.service)
            assert await feed.start()
            view, screen = View(feed), Screen()
            opened = view.collect()
            screen.take(opened)
            assert (len(screen.turns), opened[0]["left"]) == (30, 20)
            earlier = view.earlier()
            screen.take(earlier)
            assert (len(screen.turns), earlier[0]["left"]) == (50, 0)
            assert screen.turns[0]["text"] == "turn 0"
            assert view.collect() == []
            await feed.close()

    asyncio.run(play())


def test_a_deleted_chat_is_gone_for_those_who_look_at_it(house: Callable[..., Any]) -> None:
    async def play() -> None:
        async with house() as h:
            chat = h.service.create_chat()
            feed = ChatFeed(chat.id, h.service)
            assert await feed.start()
            view, screen = View(feed), Screen()
            screen.take(view.collect())
            h.service.delete_chat(chat.id)
            await over(feed)
            screen.take(view.collect())
            assert screen.gone
            assert not await ChatFeed(chat.id, h.service).start()
            await feed.close()

    asyncio.run(play())


def test_a_server_that_closes_does_not_look_like_a_deleted_chat(house: Callable[..., Any]) -> None:
    async def play() -> None:
        async with house() as h:
            chat = h.service.create_chat()
            feed = ChatFeed(chat.id, h.service)
            assert await feed.start()
            view, screen = View(feed), Screen()
            await h.service.close()
            await over(feed)
            screen.take(view.collect())
            assert not screen.gone

    asyncio.run(play())


async def settled(feed: ChatFeed, turns: int, last: str | None = None) -> None:
    """Returns once so many turns are there, the last of which (with this id) has ended."""
    while len(feed.turns) != turns or feed.turns[-1].live or last not in (None, feed.turns[-1].id):
        await asyncio.sleep(0.01)


async def over(feed: ChatFeed) -> None:
    while not feed.over:
        await asyncio.sleep(0.01)
