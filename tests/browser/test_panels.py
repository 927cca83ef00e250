"""The panels beside the conversation as a person uses them: settings, monitor, and the door of the household."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from driving import answer, send, until

Page = Any  # playwright's; it need not be installed to collect these tests
Server = Any
KEY = "7kx2-mm4t-9wqe-hh3d"
CONFIG = f"""\
# what I changed
server:
  api_key: {KEY}  # of our house
engine:
  fusion: true
"""


@pytest.fixture(scope="module")
def house(browser: object, make_server: Callable[..., Server]) -> Server:
    """A server of its own: these tests change its settings."""
    return make_server(config=CONFIG)


@pytest.fixture
def home(house: Server, open_context: Callable[..., Any]) -> Iterator[Page]:
    """Its page, on its own machine."""
    watched = open_context(house, viewport={"width": 1280, "height": 800})
    watched.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = watched.context.new_page()
    page.goto(house.url)
    page.wait_for_selector("body.octavo-ready .example")
    yield page
    forgive(watched, 400)  # a value that cannot be so


def forgive(watched: Any, status: int) -> None:
    """The browser's own lines about answers that a test wanted."""
    watched.errors[:] = [error for error in watched.errors if not re.search(rf"status of {status}\b", error)]


def place(page: Page, name: str) -> None:
    page.get_by_role("navigation", name="Octavo", exact=True).get_by_role("button", name=name, exact=True).click()


def test_a_setting_is_changed_reloaded_and_edited_by_hand_while_a_chat_goes_on(home: Page, house: Server) -> None:
    file = house.folder / "config.yaml"
    send(home, "long")
    home.wait_for_selector("article.reply.live .block")
    place(home, "Settings")
    fusion = home.get_by_role("switch", name="Fusion")
    assert fusion.get_attribute("aria-checked") == "true"
    home.locator("[data-key='engine.fusion'] .change").first.filter(has_text=re.compile("as fast$")).wait_for(
        state="attached"
    )
    fusion.click()
    home.wait_for_selector("#octavo-header .pending:not([hidden])")
    assert "fusion: false" in file.read_text(encoding="utf-8")
    assert "# of our house" in file.read_text(encoding="utf-8")
    assert home.url.endswith("#settings")
    written = len(answer(home))
    until(home, f"document.querySelector('article.reply').innerText.length > {written}")  # streams on beside the panel

    home.locator("#octavo-header .pending .do").click()
    question = home.get_by_role("dialog", name="Load the model again now?")
    assert "long" in question.inner_text()  # the chat that would stop
    question.get_by_role("button", name="Reload").click()
    home.wait_for_selector("#octavo-header .pending", state="hidden")
    home.wait_for_selector("article.reply.last:not(.live)")
    assert len(answer(home)) >= written

    port = home.get_by_label("Port", exact=True)
    port.fill("99999")
    port.press("Enter")
    home.get_by_role("alert").filter(has_text="65535").wait_for()
    port.press("Escape")
    assert "99999" not in file.read_text(encoding="utf-8")

    file.write_text(CONFIG.replace("fusion: true", "fusion: ture"), encoding="utf-8")
    home.locator(".news .bad").filter(has_text="ture").wait_for()
    file.write_text(CONFIG.replace("fusion: true", "fusion: true\n  max_running: 8"), encoding="utf-8")
    home.wait_for_selector(".news .bad", state="detached")
    until(home, "document.querySelector('#set-engine-max_running').value === '8'")

    home.get_by_label("Find a setting").fill("temperature")
    until(home, "[...document.querySelectorAll('.setting')].filter((row) => row.checkVisibility()).length === 1")
    home.keyboard.press("Escape")
    home.keyboard.press("Escape")
    home.wait_for_selector("#octavo-panel", state="hidden")
    assert "#" not in home.url


def test_a_panel_at_full_width_hides_neither_what_waits_nor_the_chat_that_is_asked_for(home: Page) -> None:
    send(home, "say seen before")
    home.wait_for_selector("article.reply.last:not(.live)")
    place(home, "Settings")
    home.get_by_role("button", name="Use the whole width").click()
    home.get_by_role("switch", name="Fusion").click()
    reload = home.locator(".news").get_by_role("button", name="Reload")
    reload.wait_for()
    home.get_by_role("button", name="Quit Octavo").scroll_into_view_if_needed()
    until(home, "document.querySelector('.panel-body').scrollTop > 1000")
    reload.click(trial=True)  # in sight, with nothing over it
    home.get_by_role("switch", name="Fusion").click()

    home.locator(".row-chat", has_text="seen before").get_by_role("link").click()
    home.wait_for_selector("#octavo-panel", state="hidden")
    home.locator("article.reply").wait_for()
    place(home, "Settings")
    home.get_by_role("button", name="New chat Ctrl K").click()
    home.wait_for_selector("#octavo-panel", state="hidden")
    home.locator(".example").first.wait_for()

    place(home, "Settings")
    home.get_by_role("button", name="Beside the conversation").click()
    home.locator(".row-chat", has_text="seen before").get_by_role("link").click()
    home.locator("article.reply").wait_for()
    assert home.locator("#octavo-panel").is_visible()  # it leaves room for both


def test_the_monitor_draws_what_happens_and_its_facts_hold_no_chat(home: Page, house: Server) -> None:
    send(home, "long and unmistakable")
    home.wait_for_selector("article.reply.live .block")
    place(home, "Monitor")
    home.locator(".tile", has_text="Writing now").locator(".value", has_text="1").wait_for()
    until(home, "/^[1-9]\\d* tok/.test(document.querySelector('.tile .value').innerText)")
    until(home, "document.querySelectorAll('.plot-box:not([hidden])').length >= 5")
    home.locator("canvas.map").hover(position={"x": 4, "y": 4})
    home.locator(".map-tip").filter(has_text="long and unmistakable").wait_for()
    until(  # the ground, a used page, a free one
        home,
        """(() => {
          const map = document.querySelector('canvas.map');
          const pixels = map.getContext('2d').getImageData(0, 0, map.width, map.height).data;
          const seen = new Set();
          for (let at = 0; at < pixels.length; at += 4) seen.add(pixels.slice(at, at + 4).join());
          return seen.size >= 3;
        })()""",
    )
    home.get_by_role("button", name="Copy diagnostics").click()
    home.get_by_role("status").filter(has_text="Copied").wait_for()
    text = until(home, "navigator.clipboard.readText()")
    assert "SmolLM2-135M-Instruct" in home.locator(".panel-monitor .state").inner_text()
    assert "Scripted-135M-Instruct" in text
    assert "unmistakable" not in text
    assert KEY not in text
    place(home, "Monitor")
    home.wait_for_selector("#octavo-panel", state="hidden")
    home.keyboard.press("Escape")
    home.wait_for_selector("article.reply.last:not(.live)")
    made = "Number(document.querySelector('.tile .more')?.textContent.replace(/\\D/g, ''))"
    place(home, "Monitor")
    until(home, f"{made} > 0")
    before = home.evaluate(made)
    load = {"id": "starter", "force": True}
    assert home.request.post(f"{house.url}/api/ui/models/load", data=load).ok
    home.reload()
    until(home, f"{made} >= {before}")
    home.get_by_text("Totals count from Octavo's start").wait_for()


@pytest.mark.parametrize("gpu", [True, False])
def test_figures_of_a_gpu_are_folded_where_there_is_none(home: Page, gpu: bool) -> None:
    def answer_with(route: Any) -> None:
        response = route.fetch()
        route.fulfill(response=response, json=response.json() | {"gpu": gpu})

    home.route("**/api/ui/settings", answer_with)
    place(home, "Settings")
    card = home.locator("[data-key='engine.paged_attention']")
    card.get_by_role("switch").wait_for()
    assert card.locator(".comparison").first.is_visible() == gpu
    if not gpu:
        card.get_by_text("Measured on another machine, with a GPU").click()
        card.locator(".comparison").first.wait_for()


def test_the_monitor_speaks_of_slots_and_of_the_chats_that_fit_where_paging_is_off(home: Page) -> None:
    def slots(route: Any) -> None:
        response = route.fetch()
        route.fulfill(response=response, json=response.json() | {"slots": True, "page_size": 8192})

    def settings(route: Any) -> None:
        response = route.fetch()
        picture = response.json()
        picture["now"]["settings"] |= {"max_running": 64, "slots": 16}
        route.fulfill(response=response, json=picture)

    home.route("**/api/ui/monitor/pages?*", slots)
    home.route(re.compile(r"/api/ui/monitor(\?.*)?$"), settings)
    place(home, "Monitor")
    home.get_by_text("of 16 at once", exact=True).wait_for()
    home.get_by_text("Each square is a slot for one chat, 8,192 tokens long.").wait_for()
    home.locator(".plot-title", has_text="Slots").wait_for()
    home.get_by_role("img", name="Slots:").wait_for()
    assert home.locator(".plot-title", has_text="Pages").count() == 0


def test_every_list_to_choose_from_shows_that_it_is_one(home: Page) -> None:
    arrows = "list => list.map(e => getComputedStyle(e).backgroundImage.startsWith('linear-gradient'))"
    for name in ("Models", "Presets", "Settings", "Monitor"):
        place(home, name)
        panel = home.locator(f".panel-{name.lower()}")
        if name == "Models":
            panel.get_by_role("button", name="How to load").first.click()
        panel.locator("select:visible").first.wait_for()
        found = panel.locator("select:enabled").evaluate_all(arrows)
        assert found
        assert all(found), name


def test_where_the_system_sets_the_colours_states_can_still_be_told(
    server: Server, open_context: Callable[..., Any]
) -> None:
    page = open_context(server, forced_colors="active").context.new_page()
    page.goto(f"{server.url}/#monitor")
    page.locator(".ranges button").first.wait_for()
    drawn = "(e, name) => getComputedStyle(e)[name]"
    swatches = [page.locator(f".panel-monitor .{name} .swatch").first for name in ("used", "shared", "cached", "free")]
    assert len({swatch.evaluate(drawn, "backgroundColor") for swatch in swatches}) == 4
    lines = [button.evaluate(drawn, "outlineStyle") for button in page.locator(".ranges button").all()]
    assert sorted(lines) == ["none", "none", "solid"]


def test_another_device_enters_the_key_once_and_sees_the_same_chats(
    house: Server, home: Page, open_context: Callable[..., Any]
) -> None:
    send(home, "echo seen by all of us")
    home.wait_for_selector("article.reply.last:not(.live) .figures")
    away = {"X-Forwarded-For": "192.168.1.9"}  # as through a proxy: not this machine
    watched = open_context(
        house, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True, extra_http_headers=away
    )
    phone = watched.context.new_page()
    phone.goto(house.url)
    manifest = phone.request.get(f"{house.url}/manifest.json")  # browsers ask for it without the cookie
    assert manifest.headers["content-type"] == "application/manifest+json"
    assert phone.request.get(f"{house.url}{manifest.json()['icons'][0]['src']}").ok
    phone.get_by_label("Key").fill("not the key")
    phone.get_by_role("button", name="Open the chats").click()
    phone.get_by_text("That is not the key.").wait_for()
    phone.get_by_label("Key").fill(KEY)
    phone.keyboard.press("Enter")
    phone.wait_for_selector("body.octavo-ready .example")
    [cookie] = [cookie for cookie in watched.context.cookies() if cookie["name"] == "octavo_key"]
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    assert KEY not in cookie["value"]

    phone.get_by_role("button", name="Show the list of chats").tap()
    phone.locator(".row-chat", has_text="echo seen by all of us").get_by_role("link").tap()
    phone.locator("article.reply").filter(has_text="seen by all of us").wait_for()
    phone.get_by_role("button", name="Show the list of chats").tap()
    place(phone, "Settings")
    phone.wait_for_selector("#set-server-port")
    assert phone.locator("#set-server-port").is_disabled()
    assert phone.locator("#octavo-panel").evaluate("panel => panel.offsetWidth") == 390

    second = watched.context.new_page()
    second.goto(house.url)
    second.wait_for_selector("body.octavo-ready")  # not asked again
    forgive(watched, 401)  # the door itself, and the wrong key


def test_deleting_says_how_many_chats_and_languages_have_their_own_names(home: Page) -> None:
    send(home, "echo one more")
    home.wait_for_selector("article.reply.last:not(.live)")
    place(home, "Settings")
    options = home.locator("[data-key='app.language'] option")
    options.first.wait_for(state="attached")
    assert options.all_text_contents() == ["as in the browser", "English", "简体中文"]
    home.locator("#data-chats").check()
    home.get_by_role("button", name="Delete", exact=True).click()
    question = home.get_by_role("dialog", name="Delete for good?")
    chats = home.locator(".row-chat").count()
    assert question.locator("li").inner_text() == (f"{chats} chats" if chats > 1 else "1 chat")
    question.get_by_role("button", name="Cancel").click()


def test_the_page_names_formats_in_its_language(house: Server, open_context: Callable[..., Any]) -> None:
    page = open_context(house, extra_http_headers={"accept-language": "zh-CN"}).context.new_page()
    page.goto(house.url)
    page.wait_for_selector("body.octavo-ready .example")
    assert page.locator(".chip").inner_text().endswith("Q4_1，以 bfloat16 运行 · CPU")


def test_closing_the_house_asks_whether_the_key_goes_too(home: Page, house: Server) -> None:
    """The last test here: afterwards this house has no key."""
    place(home, "Settings")
    section = home.locator(".household")
    section.get_by_text("Programs on this machine need it too").wait_for()
    switch = section.get_by_role("switch")
    switch.click()
    section.get_by_text("Takes a restart.").wait_for()
    section.get_by_text("Programs on this machine need it too").wait_for(state="detached")
    switch.click()
    question = home.get_by_role("dialog", name="Drop the key too?")
    question.get_by_role("button", name="Keep the key").click()
    section.get_by_text("Programs on this machine need it too").wait_for()
    assert KEY in (house.folder / "config.yaml").read_text(encoding="utf-8")
    switch.click()
    section.get_by_text("Takes a restart.").wait_for()
    switch.click()
    question.get_by_role("button", name="Drop the key").click()
    section.get_by_text("Programs on this machine need it too").wait_for(state="detached")
    section.get_by_text("Takes a restart.").wait_for()
    text = (house.folder / "config.yaml").read_text(encoding="utf-8")
    assert KEY not in text
    assert "host: 127.0.0.1" in text
