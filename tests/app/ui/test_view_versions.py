"""A tab that shows one version of a chat is shown another, and is told where each turn stands among its versions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from screen import Screen

from octavo.app.chat.types import Message
from octavo.app.ui import feed as feed_module
from octavo.app.ui.feed import ChatFeed
from octavo.app.ui.render import render
from octavo.app.ui.view import View


async def settled(feed: ChatFeed, reply: Message) -> None:
    """Returns once the feed shows the reply, which has ended."""
    await shown(feed, reply.id)
    while feed._service.running(feed.chat_id) is not None or feed.turns[-1].live or not is_current(feed):
        await asyncio.sleep(0.005)


def is_current(feed: ChatFeed) -> bool:
    """Whether it has heard of all that the service has."""
    chat = feed._service.get_chat(feed.chat_id)
    return chat is not None and [turn.message for turn in feed.turns] == list(chat.messages)


async def shown(feed: ChatFeed, message_id: str) -> None:
    while message_id not in {turn.id for turn in feed.turns}:
        await asyncio.sleep(0.005)


def texts(screen: Screen) -> list[str]:
    return [
        f"{turn.get('text') or ''.join(turn['answer'].blocks)} {turn['version']}/{turn['versions']}"
        for turn in screen.turns
    ]


def paragraph(text: str) -> str:
    return f'<p dir="auto">{text}</p>'


def test_a_tab_follows_edits_and_turns_back(house: Callable[..., Any]) -> None:
    async def play() -> None:
        numbers = iter(range(1, 9))
        async with house(script=lambda prompt: f"reply {next(numbers)}") as h:
            chat = h.service.create_chat()
            feed = ChatFeed(chat.id, h.service)
            assert await feed.start()
            view, screen = View(feed), Screen()
            for text in ("one", "two"):
                await settled(feed, await h.service.send(chat.id, text))
                screen.take(view.collect())
            first, second = screen.turns[0]["id"], screen.turns[2]["id"]
            await settled(feed, await h.service.send(chat.id, "two, edited", beside=second))
            screen.take(view.collect())
            assert texts(screen)[2:] == ["two, edited 2/2", f"{paragraph('reply 3')} 1/1"]
            h.service.show_version(chat.id, second)
            await shown(feed, second)
            screen.take(view.collect())
            assert texts(screen)[2:] == ["two 1/2", f"{paragraph('reply 2')} 1/1"]
            await settled(feed, await h.service.send(chat.id, "one, edited", beside=first))
            screen.take(view.collect())
            assert texts(screen) == ["one, edited 2/2", f"{paragraph('reply 4')} 1/1"]
            h.service.show_version(chat.id, first)
            await shown(feed, first)
            screen.take(view.collect())
            assert [text.split(" ")[-1] for text in texts(screen)] == ["1/2", "1/1", "1/2", "1/1"]
            assert view.collect() == []

    asyncio.run(play())


def test_a_turn_that_stays_learns_of_a_new_version_beside_it(house: Callable[..., Any]) -> None:
    async def play() -> None:
        async with house() as h:
            chat = h.service.create_chat()
            feed = ChatFeed(chat.id, h.service)
            assert await feed.start()
            await settled(feed, await h.service.send(chat.id, "hello"))
            view, screen = View(feed), Screen()
            screen.take(view.collect())
            reply = screen.turns[1]["id"]
            have = screen.have()
            await h.service.edit_reply(chat.id, reply, "another")
            h.service.show_version(chat.id, reply)  # and back, before the tab looks
            while not is_current(feed):
                await asyncio.sleep(0.005)
            screen.take(view.collect())
            assert texts(screen)[1].endswith(" 1/2")
            resumed = Screen()
            resumed.turns = [dict(turn, version=1, versions=1) for turn in screen.turns]
            resumed.take(View(feed, have).collect())  # and a tab that was away
            assert texts(resumed)[1].endswith(" 1/2")

    asyncio.run(play())


def test_a_tab_follows_what_is_removed_and_put_back_wherever_that_is(house: Callable[..., Any]) -> None:
    async def play() -> None:
        random = Random(3)
        async with house() as h:
            chat = h.service.create_chat().id
            for number in range(20):
                h.service.store.add_message(chat, "user", f"question {number}")
                reply = h.service.store.add_message(chat, "assistant", f"reply {number}")
                if number % 5 == 0:
                    h.service.store.add_message(chat, "assistant", f"another {number}", beside_id=reply.id)
            feed = ChatFeed(chat, h.service)
            assert await feed.start()
            view, screen = View(feed), Screen()
            screen.take(view.collect())  # the last thirty turns
            for _ in range(60):
                if random.random() < 0.3:
                    screen.take(view.earlier())
                turn = random.choice(feed.turns).id
                h.service.remove_turn(chat, turn)
                for back in (False, True) if random.random() < 0.8 else (False,):
                    if back:
                        h.service.put_back(chat, turn)
                    while not is_current(feed):
                        await asyncio.sleep(0.001)
                    if random.random() < 0.3:  # it was away meanwhile
                        view = View(feed, screen.have())
                        screen.forget_open_ends()
                    screen.take(view.collect())
                    whole = Screen()
                    whole.take(View(feed).collect())
                    end = -min(len(screen.turns), len(whole.turns))
                    assert texts(screen)[end:] == texts(whole)[end:]
                    assert [turn["id"] for turn in screen.turns] == [turn.id for turn in feed.turns][
                        -len(screen.turns) :
                    ]
                    assert view.collect() == []
            before = len(feed.turns) - len(screen.turns)
            assert screen.left == before or screen.left > 0 < before

    asyncio.run(play())


def test_what_comes_back_before_all_that_a_tab_shows_is_shown_too(house: Callable[..., Any]) -> None:
    async def play() -> None:
        async with house() as h:
            chat = h.service.create_chat()
            feed = ChatFeed(chat.id, h.service)
            assert await feed.start()
            for text in ("one", "two"):
                await settled(feed, await h.service.send(chat.id, text))
            first = feed.turns[0].id
            for is_away in (False, True):
                h.service.remove_turn(chat.id, first)
                while len(feed.turns) != 2:
                    await asyncio.sleep(0.001)
                view, screen = View(feed), Screen()
                screen.take(view.collect())
                assert screen.left == 0
                h.service.put_back(chat.id, first)
                while len(feed.turns) != 4:
                    await asyncio.sleep(0.001)
                if is_away:
                    view = View(feed, screen.have())
                    screen.forget_open_ends()
                screen.take(view.collect())
                if screen.left:  # a button shows the rest
                    screen.take(view.earlier())
                assert [turn["id"] for turn in screen.turns] == [turn.id for turn in feed.turns]

    asyncio.run(play())


def test_a_continued_reply_is_drawn_on_from_where_it_ended(house: Callable[..., Any]) -> None:
    async def play() -> None:
        answers = iter(["Some **bold", " text**\n\nand a paragraph\n\n", "- one\n- two"])
        async with house(script=lambda prompt: next(answers)) as h:
            chat = h.service.create_chat()
            feed = ChatFeed(chat.id, h.service)
            assert await feed.start()
            view, screen = View(feed), Screen()
            await settled(feed, await h.service.send(chat.id, "go", nonce="n"))
            screen.take(view.collect())
            whole = "Some **bold"
            for looks, more in ((True, " text**\n\nand a paragraph\n\n"), (False, "- one\n- two")):
                reply = await h.service.continue_reply(chat.id)
                if looks:  # while it is written
                    screen.take(view.collect())
                await settled(feed, reply)
                screen.take(view.collect())
                whole += more
                assert tuple(screen.turns[1]["answer"].blocks) == render(whole)
            late = Screen()
            late.take(View(feed).collect())
            assert late.turns[1]["answer"].blocks == screen.turns[1]["answer"].blocks

    asyncio.run(play())


def test_a_stopped_reply_shows_no_half_marks(house: Callable[..., Any]) -> None:
    async def play() -> None:
        text = "He was **very tired " + "and old " * 10_000
        async with house(script=lambda prompt: text, token_s=0.001, context_length=100_000) as h:
            chat = h.service.create_chat()
            feed = ChatFeed(chat.id, h.service)
            assert await feed.start()
            reply = await h.service.send(chat.id, "go")
            while len(feed.turns) < 2 or len(feed.turns[1].message.content) < 30:
                await asyncio.sleep(0.005)
            h.service.stop(chat.id)
            await settled(feed, reply)
            screen = Screen()
            screen.take(View(feed).collect())
            html = "".join(screen.turns[1]["answer"].blocks)
            assert "<strong>very tired" in html
            assert "*" not in html

    asyncio.run(play())


def test_turning_away_from_a_running_reply_and_back_shows_all_of_it(house: Callable[..., Any]) -> None:
    async def play() -> None:
        text = "word " * 60
        async with house(script=lambda prompt: text, token_s=0.001) as h:
            chat = h.service.create_chat()
            feed = ChatFeed(chat.id, h.service)
            assert await feed.start()
            await settled(feed, await h.service.send(chat.id, "go"))
            view, screen = View(feed), Screen()
            first = feed.turns[1].id
            second = (await h.service.regenerate(chat.id)).id
            await shown(feed, second)
            screen.take(view.collect())
            for target in (first, second, first):
                h.service.show_version(chat.id, target)
                await shown(feed, target)
                screen.take(view.collect())
            while h.service.running(chat.id) is not None:
                await asyncio.sleep(0.01)
            h.service.show_version(chat.id, second)
            await shown(feed, second)
            screen.take(view.collect())
            assert screen.turns[1]["status"] == "complete"
            assert tuple(screen.turns[1]["answer"].blocks) == render(text)

    asyncio.run(play())


def test_only_so_many_turns_that_are_not_shown_are_kept_drawn(house: Callable[..., Any]) -> None:
    async def play() -> None:
        async with house() as h:
            chat = h.service.create_chat()
            feed = ChatFeed(chat.id, h.service)
            assert await feed.start()
            await settled(feed, await h.service.send(chat.id, "go"))
            for _ in range(feed_module.KEPT_ASIDE + 20):
                await settled(feed, await h.service.regenerate(chat.id))
            assert len(feed._drawn) <= feed_module.KEPT_ASIDE + 3

    asyncio.run(play())
