"""Reading a reply: on a phone, in Chinese, from right to left, with reasoning, and cut off in the middle."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from driving import answer, reply, send, until, wait_for_end

from octavo.app.ui.strings import SENTENCES

Page = Any  # playwright's; it need not be installed to collect these tests

MIXED = """echo 这是**“重点”**。

שלום **עולם**, זה English באמצע.

It costs $5 and then $7.50, while \\(i<j\\) and $x^2$ hold.

| a | b |
|---|--:|
| {wide} | 2 |

```
{wide}
```

\\[ {sum} \\]

In a line \\({sum}\\) too.

{wide}"""


def test_every_script_reads_its_own_way_and_nothing_is_wider_than_a_phone(
    open_context: Callable[..., Any], server: Any
) -> None:
    context = open_context(
        server, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True, color_scheme="dark"
    )
    page = context.context.new_page()
    page.goto(server.url)
    page.wait_for_selector("body.octavo-ready .example")
    send(page, MIXED.format(wide="x" * 150, sum=" + ".join(["x"] * 40)))
    wait_for_end(page)
    shown = reply(page)
    assert shown.locator("strong").first.inner_text() == "“重点”"
    assert shown.locator("math").count() == 4
    assert "$5 and then $7.50" in shown.inner_text()
    hebrew = shown.locator("p").nth(1)
    assert hebrew.evaluate("p => getComputedStyle(p).direction") == "rtl"
    assert (
        hebrew.evaluate("p => p.getBoundingClientRect().right - p.querySelector('strong').getBoundingClientRect().left")
        > 50
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator(".scroller").evaluate("s => s.scrollWidth - s.clientWidth") == 0
    for box in ("pre", "table", ".math.display", ".math.long"):
        assert shown.locator(box).first.evaluate("e => e.scrollWidth > e.clientWidth"), box  # scrolls by itself
    paper = page.evaluate("getComputedStyle(document.getElementById('octavo')).backgroundColor")
    assert paper == "rgb(23, 22, 19)"


def test_reasoning_is_folded_away_and_ends_with_its_duration(tab: Page, server: Any) -> None:
    send(tab, "think and the answer")
    box = tab.locator("article.reply details.thought")
    box.wait_for()
    assert box.evaluate("d => d.open") is False
    box.locator("summary").press("Enter")
    assert box.evaluate("d => d.open") is True
    wait_for_end(tab)
    assert "I weigh the question" in box.inner_text()
    assert re.search(r"Thought for [\d.]+ m?s", box.locator(".label").inner_text())
    assert answer(tab) == "and the answer"
    with server.held():
        send(tab, "ponder " + "this and that " * 200)
        until(tab, "document.querySelectorAll('article.reply').length === 2")
        tab.wait_for_selector("article.reply.live .thought.now", state="attached")
        tab.keyboard.press("Escape")  # in the middle of the reasoning
        wait_for_end(tab, 2)
    last = reply(tab).locator("details.thought")
    assert "now" not in last.get_attribute("class").split()
    assert re.search(r"Thought for [\d.]+ m?s", last.locator(".label").inner_text())


def test_a_stopped_reply_ends_without_half_marks(tab: Page, server: Any) -> None:
    with server.held():
        send(tab, "echo Begin **bold words " + "that go on and on " * 200 + "** end")
        until(tab, "document.querySelector('article.reply.live strong')?.innerText.length > 60")
        tab.keyboard.press("Escape")
        wait_for_end(tab)
    assert "*" not in answer(tab)
    assert reply(tab).locator("strong").count() == 1
    tab.reload()
    tab.wait_for_selector("article.reply .figures")
    assert "*" not in answer(tab)


# What the server says in English, with names, with what to do, with a reason inside, and with what nobody knows.
SAID = {
    "There is no folder or file /data/a. b.gguf. Check how the path is written.": (
        "没有文件夹或文件 /data/a. b.gguf。请检查路径的写法。"
    ),
    "cuda was asked for, but no NVIDIA driver was found. Set model.device to cpu or auto.": (
        "要求使用 cuda，但是没有找到 NVIDIA 驱动。请把 model.device 设为 cpu 或 auto。"
    ),
    "line 3: server.port must be a whole number, found 'x'.\nline 4: app.nonsense is not a known key.": (
        "第 3 行：server.port 应为整数，现在是 'x'。\n第 4 行：没有 app.nonsense 这个键。"
    ),
    "Something new happened. Try again.": "Something new happened. 请再试一次。",
    "Loading failed unexpectedly (ValueError: bad. Very bad). The log has the details.": (
        "加载意外失败（ValueError: bad. Very bad）。详情见日志。"
    ),
    "A sentence that nobody knows.": "A sentence that nobody knows.",
}


def test_the_page_speaks_chinese_to_a_chinese_browser(open_context: Callable[..., Any], server: Any) -> None:
    page = open_context(server, extra_http_headers={"accept-language": "zh-CN,zh;q=0.9"}).context.new_page()
    page.goto(server.url)
    page.wait_for_selector("body.octavo-ready .example")
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    page.get_by_role("textbox", name="消息").fill("echo 你好")
    page.keyboard.press("Enter")
    wait_for_end(page)
    page.set_input_files(
        "#octavo-composer input[type=file]", [{"name": "a.zip", "mimeType": "x", "buffer": b"PK\x03\x04" + bytes(60)}]
    )
    page.get_by_role("status").filter(has_text="a.zip 已损坏").wait_for()
    page.get_by_role("button", name="键盘快捷键").click()
    page.get_by_role("dialog", name="键盘快捷键").wait_for()
    page.keyboard.press("Escape")
    english = page.evaluate(
        """() => [...document.querySelectorAll('#octavo button, #octavo textarea')]
            .map(e => e.ariaLabel || e.placeholder || '').filter(text => /^[A-Za-z ]{4,}$/.test(text))"""
    )
    assert english == []
    said = page.evaluate(
        """async texts => { const { worded } = await import('/ui/words.js'); return texts.map(worded); }""", list(SAID)
    )
    assert dict(zip(SAID, said)) == SAID
    forms = [re.sub(r"\{\w+\}", "Q8", form) for form in SENTENCES["zh-CN"]]
    found = page.evaluate(
        """async texts => { const { worded } = await import('/ui/words.js'); return texts.map(worded); }""", forms
    )
    unchanged = [form for form, text in zip(forms, found) if not re.search("[\u4e00-\u9fff]", text)]
    assert unchanged == []
