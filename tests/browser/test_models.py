"""The models panel and the first start, from the search to the loaded model, with a hub on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from driving import send, until, wait_for_end, wait_until
from fake_hub import FakeHub, example_models, serving

Page = Any

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "max_position_embeddings": 4096,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "dtype": "bfloat16",
}


@dataclass
class House:
    server: Any
    hub: FakeHub


@pytest.fixture(scope="module")
def house(
    browser: object,
    make_server: Callable[..., Any],
    starter_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[House]:
    """A server that was never started before, without a model, that knows a hub with a few models."""
    hub = example_models(starter_path.read_bytes(), CONFIG)
    hub.repositories["HuggingFaceTB/SmolLM2-135M-Instruct"] = hub.repositories["meadow/small-instruct"]
    with serving(hub):
        server = make_server(
            config="model:\n  id: none # nothing yet\n",
            HF_ENDPOINT=hub.url,
            HF_HUB_OFFLINE="0",
            HF_HOME=str(tmp_path_factory.mktemp("hf")),
            HF_TOKEN="",
            NO_PROXY="127.0.0.1,localhost",
            OCTAVO_STARTER=str(starter_path),
        )
        yield House(server, hub)
        server.stop()


def open_models(house: House, open_context: Any, **options: Any) -> Page:
    page = open_context(house.server, viewport={"width": 1280, "height": 900}, **options).context.new_page()
    page.goto(f"{house.server.url}/#models")
    page.wait_for_selector(".panel-models .rows .row")
    return page


def test_a_first_start_shows_the_machine_and_models_that_fit_it_and_asks_nobody(
    house: House, open_context: Any
) -> None:
    page = open_context(house.server, viewport={"width": 1280, "height": 900}).context.new_page()
    page.goto(house.server.url)
    page.wait_for_selector(".machine li")
    assert "memory free" in page.locator(".machine .hardware").inner_text()
    assert 1 <= page.locator(".machine li").count() <= 4
    assert house.hub.requests == []
    page.get_by_role("button", name="All models…").click()
    page.wait_for_selector(".panel-models .hub-form")
    assert house.hub.requests == []
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Load the starter model").click()
    page.wait_for_selector(".welcome .example")
    send(page, "echo hello")
    wait_for_end(page)


def test_a_model_is_searched_fetched_in_two_parts_and_loaded(house: House, open_context: Any) -> None:
    hub = house.hub
    page = open_models(house, open_context)
    suggested = page.locator("[data-section=get] .rows .row")
    suggested.first.wait_for()
    before = suggested.all_inner_texts()
    page.route("**/models/search", lambda route: route.fulfill(status=422, json={"error": {"message": "No network."}}))
    page.get_by_role("searchbox", name="Search the Hugging Face hub").fill("small")
    page.keyboard.press("Enter")
    page.get_by_text("No network.").wait_for()
    assert suggested.all_inner_texts() == before != []  # a search that fails takes nothing away
    page.unroute("**/models/search")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Look at meadow/small-instruct-GGUF").click()
    row = page.locator(".row", has=page.get_by_role("button", name="Look at meadow/small-instruct-GGUF"))
    row.locator(".fit-picture").wait_for()
    row.locator(".fit-legend", has_text="weights").wait_for()
    row.locator(".choices-list li").nth(1).wait_for()
    assert row.locator(".choices-list li").count() == 2
    page.get_by_role("button", name="Look at meadow/small-instruct", exact=True).click()
    hub.bytes_per_s, hub.slow_after = 5e4, 1 << 20  # the second MiB and the third take forty seconds
    page.get_by_role("button", name="Download meadow/small-instruct", exact=True).click()
    job = page.locator("[data-section=downloads] .row")
    until(page, "/MiB of 3 MiB·.*iB\\/s/.test(document.querySelector('[data-section=downloads] .row')?.textContent)")
    page.get_by_role("button", name="Pause: meadow/small-instruct").click()
    job.get_by_text("paused at").wait_for()
    house.server.stop()
    house.server.start()  # the download waits for somebody to go on with it
    page.reload()
    job.get_by_text("paused at").wait_for()
    hub.bytes_per_s = None
    page.get_by_role("button", name="Go on: meadow/small-instruct").click()
    job.get_by_text("complete").wait_for()
    assert hub.sent("model.safetensors") == 2
    assert not hub.ranges[-1].startswith("bytes=0-")
    page.locator("[data-section=disk] .mark:visible").wait_for()
    page.locator("[data-section=now]").filter(has_text="small-instruct").wait_for()
    page.get_by_role("button", name="Take off the list: meadow/small-instruct").click()
    job.wait_for(state="detached")


def test_while_the_hub_is_away_no_more_is_said_than_is_known(house: House, open_context: Any) -> None:
    away = {"error": {"message": "The Hugging Face hub cannot be reached.", "code": "offline"}}
    page = open_models(house, open_context)
    hub = page.locator("[data-section=get]")
    marks, known = hub.locator(".row .good"), hub.locator(".known")
    wait_until(page, lambda: set(marks.all_inner_texts()) == {"fits"})
    page.route("**/models/*", lambda route: route.fulfill(status=422, json=away))
    page.get_by_role("searchbox", name="Search the Hugging Face hub").fill("small")
    page.keyboard.press("Enter")
    known.get_by_text("only the sizes of Octavo's own list are known").wait_for()
    marks.first.wait_for(state="detached")
    hub.locator(".row").first.get_by_text("would fit, by its size").wait_for()
    page.unroute("**/models/*")
    page.keyboard.press("Enter")
    look = page.get_by_role("button", name="Look at meadow/small-instruct", exact=True)
    look.wait_for()
    known.wait_for(state="hidden")
    wait_until(page, lambda: set(marks.all_inner_texts()) == {"fits"})
    page.route("**/models/*", lambda route: route.fulfill(status=422, json=away))
    look.click()
    known.filter(has_text="The hub said this at").wait_for()
    marks.first.wait_for(state="detached")
    page.unroute("**/models/*")
    look.click()
    look.click()  # closed and opened again it asks again
    hub.locator(".fit-picture").wait_for()
    known.wait_for(state="hidden")
    wait_until(page, lambda: "fits" in marks.all_inner_texts())


def test_a_hub_that_must_not_be_asked_leaves_the_suggestions_unsure(server: Any, page: Page) -> None:
    page.goto(f"{server.url}/#models")
    page.locator("[data-section=get] .row").first.wait_for()
    page.get_by_text("HF_HUB_OFFLINE is set").wait_for()
    page.locator("[data-section=get] .known").wait_for()
    assert page.locator("[data-section=get] .good").count() == 0


def test_a_first_start_that_must_not_ask_the_hub_says_so_and_offers_no_download(
    browser: object, make_server: Callable[..., Any], open_context: Any
) -> None:
    server = make_server(config="model:\n  id: none\n")  # with HF_HUB_OFFLINE=1, as all of them
    page = open_context(server).context.new_page()
    page.goto(server.url)
    page.locator(".machine").get_by_text("HF_HUB_OFFLINE is set").wait_for()
    assert page.locator(".machine li button:enabled").count() == 0
    page.get_by_role("button", name="Load the starter model").click()
    page.wait_for_selector(".welcome .example")
    small = page.locator(".welcome .small", has_text="a very small model to try things with")
    small.get_by_role("button", name="Get a better one").click()
    page.locator("[data-section=get] .row").first.wait_for()
    of_another = """async () => {
        const { Welcome } = await import('/ui/welcome.js');
        const welcome = new Welcome(document.createElement('div'), {});
        welcome.model({ state: 'ready', id: 'org/Large-70B' });
        return [welcome.element.querySelectorAll('.example').length, welcome.element.querySelectorAll('.small').length];
    }"""
    assert page.evaluate(of_another) == [3, 0]
    server.stop()


def test_what_could_not_be_fetched_can_be_asked_for_again_at_once(
    browser: object, make_server: Callable[..., Any], open_context: Any
) -> None:
    nobody = "http://127.0.0.1:9"
    server = make_server(config="model:\n  id: none\n", HF_ENDPOINT=nobody, HF_HUB_OFFLINE="0", NO_PROXY="127.0.0.1")
    page = open_context(server).context.new_page()
    page.goto(server.url)
    get = page.locator(".machine li button").first
    get.click()
    page.locator(".fetching .trouble", has_text="The Hugging Face hub cannot be reached").wait_for()
    page.locator(".machine li button:enabled").first.wait_for()
    page.get_by_role("button", name="All models…").click()
    page.locator("[data-section=get] .known").wait_for()
    page.locator("[data-section=get] .good").first.wait_for(state="detached")
    job = page.locator("[data-section=downloads] .row")
    job.get_by_role("button", name="Try again").wait_for()
    assert job.get_by_role("button", name="Enter a token").count() == 0
    server.stop()


def test_how_a_model_is_loaded_is_chosen_with_its_memory_in_view(house: House, open_context: Any) -> None:
    page = open_models(house, open_context)
    page.get_by_role("button", name="How to load SmolLM2-135M-Instruct").click()
    form = page.locator(".load-form")
    form.locator(".fit-picture").wait_for()
    whole = form.locator(".key.kv").inner_text()
    weights = form.get_by_label("Weights")
    about = page.locator(f"#{weights.get_attribute('aria-describedby')}")
    assert "As the model's makers stored them" in about.inner_text()
    weights.focus()
    page.keyboard.type("int4-")  # a list to choose from takes the first letters
    until(page, "document.querySelector('.format-about').innerText.includes('Like int4 with simpler scales')")
    assert "16 bit" in about.inner_text()  # quicker or slower than that
    for _ in range(3):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    told = form.locator(".formats dl")
    told.locator("dt").nth(1).wait_for()
    offered = weights.locator("option").all_inner_texts()
    assert [text.split()[0] for text in told.locator("dt").all_inner_texts()] == [text.split()[0] for text in offered]
    assert "% of 16 bit" in told.locator("dt").nth(1).inner_text()
    weights.select_option("none")
    form.get_by_label("Context for one chat").select_option("1024")
    until(page, f"document.querySelector('.load-form .key.kv')?.innerText !== {whole!r}")
    assert "until another model is loaded or Octavo starts anew" in form.locator(".holds").inner_text()
    form.get_by_role("button", name="For every start").click()
    page.wait_for_selector(".panel-settings [data-key='model.quantization']")
    page.go_back()
    page.get_by_role("button", name="How to load SmolLM2-135M-Instruct").click()
    form.locator(".fit-picture").wait_for()
    form.get_by_label("Context for one chat").select_option("1024")
    form.get_by_role("button", name="Load", exact=True).click()
    page.locator(".row", has_text="at start").or_(page.locator("[data-section=disk] .row")).first.wait_for()
    until(page, "document.querySelector('[data-section=now]').innerText.includes('SmolLM2')")
    send(page, "long count 400")
    page.wait_for_selector("article.reply.live")
    page.get_by_role("button", name="Unload").click()
    question = page.get_by_role("dialog", name="This ends what is being written")
    assert "count 400" in question.inner_text()
    question.get_by_role("button", name="End it and unload").click()
    page.get_by_text("No model is loaded. Its memory is free.").wait_for()
    load = page.locator("[data-section=disk]").get_by_role("button", name="Load SmolLM2-135M-Instruct", exact=True)
    wait_until(page, load.is_enabled)
    assert page.locator("article.reply").inner_text() != ""
    page.get_by_role("button", name="Load at every start").click()
    page.locator(".tag", has_text="at start").wait_for()
    written = (house.server.folder / "config.yaml").read_text(encoding="utf-8")
    assert written == "model:\n  id: starter # nothing yet\n"


def test_terms_and_tokens_are_explained_where_they_are_needed(house: House, open_context: Any) -> None:
    page = open_models(house, open_context)
    page.get_by_role("searchbox", name="Search the Hugging Face hub").fill("terms")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Look at meadow/terms-1b").click()
    page.get_by_text("must be granted on its Hugging Face page").wait_for()
    assert page.get_by_role("link", name="Open its page").get_attribute("href") == f"{house.hub.url}/meadow/terms-1b"
    page.get_by_role("button", name="Enter a token").click()
    until(page, "document.activeElement.type === 'password'")
    page.keyboard.type("hf_nonsense")
    page.keyboard.press("Enter")
    page.get_by_text("does not know this token").wait_for()
    page.get_by_label("Hugging Face token").fill("hf_reader")
    page.keyboard.press("Enter")
    page.get_by_text("The token of ada is set.").wait_for()
    page.get_by_role("button", name="Download meadow/terms-1b").click()
    page.locator("[data-section=downloads] .row", has_text="complete").wait_for()
    assert house.hub.leaks == []
    assert "hf_" not in page.locator("#octavo-panel").inner_text().replace("hf_…", "")
    page.get_by_role("button", name="Forget it").click()
    page.get_by_text("No token is set.").wait_for()


def test_on_a_phone_in_chinese_the_panel_fits_and_speaks(house: House, browser: Any) -> None:
    context = browser.new_context(
        locale="zh-CN", viewport={"width": 390, "height": 780}, has_touch=True, is_mobile=True
    )
    page = context.new_page()
    page.goto(f"{house.server.url}/#models")
    page.wait_for_selector(".panel-models .rows .row")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("document.querySelector('#octavo-panel .panel-body').scrollWidth") <= 390
    assert "这台电脑上的模型" in page.locator(".panel-models").inner_text()
    context.close()
