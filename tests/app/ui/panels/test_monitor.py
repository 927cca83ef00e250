"""What the monitor shows: figures that add up, pages with their chats, a log, and facts without any text of a chat."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from fake_engine import FakeEngine

from octavo.app.monitor.lines import LogLines
from octavo.app.monitor.sampler import COLUMNS, Sampler

if TYPE_CHECKING:
    from tests.app.ui.panels.conftest import House as Running

House = Callable[..., "Running"]
PATH = "/api/ui/monitor"


def slow() -> FakeEngine:
    return FakeEngine(lambda prompt: "word " * 400, token_s=0.01)


def test_a_sample_counts_what_was_made_since_the_one_before(house: House) -> None:
    here = house(engine=slow)
    sampler = Sampler(here.host)
    first = sampler.look()
    assert first.generated_tok_s == 0  # nothing to compare with yet
    here.begin_chat("Tell me everything")
    second = sampler.look()
    assert second.generated_tok_s > 0
    assert (second.running, second.waiting) == (1, 0)
    assert second.pages_used > 0
    assert second.process_bytes > 0
    assert second.gpu_used_bytes is None  # a model on the CPU
    assert [sample.at_s for sample in sampler.since(first.at_s)] == [second.at_s]


def test_another_model_begins_at_nought(house: House) -> None:
    here = house(engine=slow)
    sampler = Sampler(here.host)
    sampler.look()
    here.begin_chat("Tell me everything")
    here.host.load(here.settings.values)
    here.host.wait(240)
    assert sampler.look().generated_tok_s == 0
    here.host.unload()
    here.host.wait(240)
    assert sampler.look().pages_free == 0


def test_totals_outlive_a_reload_of_the_model_and_its_unloading(house: House) -> None:
    here = house(engine=lambda: FakeEngine(lambda prompt: "three short words"))

    def counts() -> dict[str, float]:
        return here.get(PATH)["now"]["totals"]

    def chat() -> None:
        chat_id = here.begin_chat("Tell me something")
        while here.service.running(chat_id):
            time.sleep(0.005)

    began = counts()["since_s"]
    chat()
    once = counts()
    assert once["generated_tokens"] > 0
    here.host.load(here.settings.values)
    here.host.wait(240)
    assert here.get(PATH)["now"]["counters"]["generated_tokens"] == 0
    assert counts() == once
    chat()
    twice = counts()
    assert twice["generated_tokens"] == 2 * once["generated_tokens"]
    here.host.unload()
    here.host.wait(240)
    assert counts() == twice
    assert counts()["since_s"] == began
    assert f"generated_tokens {twice['generated_tokens']}" in here.get(f"{PATH}/diagnostics")["text"]


def test_totals_never_fall_while_a_model_gives_way_to_the_next(house: House) -> None:
    here = house(engine=slow)
    here.begin_chat("Tell me everything")
    seen = [here.get(PATH)["now"]["totals"]["generated_tokens"]]
    here.host.add_listener(lambda: seen.append(here.host.tally.total()["generated_tokens"]))
    here.host.load(here.settings.values)
    here.host.wait(240)
    here.host.unload()
    here.host.wait(240)
    assert len(seen) > 4
    assert seen == sorted(seen)
    assert here.host.tally.total()["generated_tokens"] >= seen[-1]


def test_the_answer_is_what_the_plots_are_drawn_from(house: House) -> None:
    picture = house().get(PATH)
    assert picture["columns"] == list(COLUMNS)
    assert picture["now"]["state"] == "ready"
    assert picture["gpu"] is None


def test_a_square_of_the_map_names_the_chat_whose_it_is(house: House) -> None:
    here = house(engine=slow)
    chat_id = here.begin_chat("Tell me everything")
    pages = here.get(f"{PATH}/pages?cells=1000")
    assert pages["chats"] == [{"id": chat_id, "title": "Tell me everything"}]
    held = [at for at, (used, _, _) in enumerate(pages["cells"]) if used]
    assert held
    assert all(pages["owners"][at] == [0] for at in held)
    assert sum(used for used, _, _ in pages["cells"]) == len(held)


@pytest.mark.parametrize("slots", [None, 16])
def test_the_map_says_whether_its_squares_are_pages_or_whole_slots(
    house: House, monkeypatch: pytest.MonkeyPatch, slots: int | None
) -> None:
    here = house(engine=slow)
    (engine,) = here.loads.made
    now = engine.status()
    monkeypatch.setattr(engine, "status", lambda: replace(now, settings={**now.settings, "slots": slots}))
    assert here.get(f"{PATH}/pages")["slots"] is (slots is not None)


def test_a_request_of_a_program_has_no_chat(house: House) -> None:
    here = house(engine=slow)
    (engine,) = here.loads.made
    engine.submit([1, 2, 3])
    while engine.status().requests["running"] == 0:
        time.sleep(0.005)
    pages = here.get(f"{PATH}/pages")
    assert pages["chats"] == [None]


def test_without_a_model_there_are_no_pages(house: House) -> None:
    here = house()
    here.host.unload()
    here.host.wait(240)
    assert here.get(f"{PATH}/pages")["cells"] == []
    assert here.get(PATH)["now"]["state"] == "empty"


def test_the_log_goes_on_where_the_reader_was(house: House) -> None:
    here = house()
    log = logging.getLogger("octavo.test")
    log.warning("first")
    lines = here.get(f"{PATH}/log")["lines"]
    assert lines[-1]["text"] == "first"
    assert here.get(f"{PATH}/log?after={lines[-1]['number']}")["lines"] == []
    log.warning("second")
    assert [line["text"] for line in here.get(f"{PATH}/log?after={lines[-1]['number']}")["lines"]] == ["second"]


def test_a_line_that_cannot_be_formatted_ends_nothing(monkeypatch: object) -> None:
    lines = LogLines()
    lines.handleError = lambda record: None  # type: ignore[method-assign]
    lines.handle(logging.LogRecord("x", logging.INFO, "f", 1, "%d", ("not a number",), None))
    lines.handle(logging.LogRecord("x", logging.INFO, "f", 1, "%s", ("fine",), None))
    assert [line.text for line in lines.after()] == ["fine"]


def test_the_diagnostics_hold_facts_and_no_text_of_a_chat(house: House) -> None:
    secret = "SESAME-IN-A-CHAT"

    def fail(prompt: str) -> str:
        raise ValueError(f"cannot say {prompt}")

    here = house("server: {api_key: open-sesame}\nsampling: {seed: 7}", engine=lambda: FakeEngine(fail))

    async def chat() -> None:
        made = here.service.create_chat()
        await here.service.send(made.id, secret)
        while here.service.running(made.id):
            await asyncio.sleep(0.005)

    here.client.portal.call(chat)  # type: ignore[union-attr]
    try:
        raise ValueError(secret)
    except ValueError:
        logging.getLogger("octavo.test").exception("A step failed")
    text = here.get(f"{PATH}/diagnostics")["text"]
    for fact in ("octavo", "processor", "torch", "fake-model", "sampling.seed=7", "server.api_key=set", "ValueError"):
        assert fact in text
    for hidden in (secret, "open-sesame"):
        assert hidden not in text


def test_a_reader_from_before_a_restart_gets_the_new_log_whole(house: House) -> None:
    here = house()
    logging.getLogger("octavo.test").warning("begun")
    answer = here.get(f"{PATH}/log?after=9000000000000000000000")
    assert answer["lines"] == here.get(f"{PATH}/log")["lines"] != []


@pytest.mark.parametrize("after", ["-1", "1.5", "x", "", "nan"])
def test_a_place_in_the_log_that_is_none_is_refused_by_name(house: House, after: str) -> None:
    answer = house().client.get(f"{PATH}/log", params={"after": after})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "after"
