"""Replies drawn while they grow look in the end as if they had been drawn at once, and can do nothing but be read."""

from __future__ import annotations

import html
import re
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.app.ui.mathml import mathml
from octavo.app.ui.render import BlockRenderer, render

PIECES = [
    "A line of text",
    "two  \nlines",
    "\n",
    "\n\n",
    "\r\n",
    "\r",
    "# Heading\n",
    "#",
    "---",
    "===\n",
    "- item\n",
    "  more of it\n",
    "1. one\n",
    "2) two\n",
    "> quoted\n",
    "```python\n",
    "```",
    "~~~\n",
    "    indented\n",
    "\t",
    "| a | b |\n",
    "|---|:-:|\n",
    "|-",
    "| 1 | 2 |\n",
    "\\[",
    "\\]",
    "\\(",
    "\\)",
    "$$",
    "$5",
    "x_1^2",
    "**bold",
    "**",
    "`",
    "*",
    "_",
    "[a](https://a.example)",
    "[a]: https://a.example\n",
    "![b](http://b.example/x.png)",
    "https://c.example/d_e",
    "<b>",
    "<!-- ",
    "\\",
    "&amp;",
    "你好",
    "שלום",
    "😀",
    " ",
]
markdown = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


def text_of(fragment: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", fragment))


@given(markdown, st.lists(st.integers(0, 400), max_size=20))
@settings(max_examples=300, deadline=None)
def test_growing_text_becomes_the_same_blocks_as_the_whole_text(text: str, cuts: list[int]) -> None:
    renderer = BlockRenderer()
    bounds = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    seen: list[str] = []
    for start, end in pairwise(bounds):
        renderer.feed(text[start:end])
        assert renderer.blocks[: len(seen)] == seen  # a finished block never changes
        assert isinstance(renderer.open, str)
        seen = list(renderer.blocks)
    renderer.finish()
    assert renderer.blocks[: len(seen)] == seen
    assert tuple(renderer.blocks) == render(text)
    assert renderer.open == ""


@given(markdown)
@settings(max_examples=100, deadline=None)
def test_text_fed_character_by_character_becomes_the_same_blocks(text: str) -> None:
    renderer = BlockRenderer()
    for character in text:
        renderer.feed(character)
        _ = renderer.blocks
    renderer.finish()
    assert tuple(renderer.blocks) == render(text)


def test_an_update_of_a_long_reply_renders_only_its_end() -> None:
    renderer = BlockRenderer("A paragraph.\n\n" * 2000 + "The end\n")
    assert len(renderer.blocks) == 2000
    assert renderer.open == '<p dir="auto">The end</p>'
    first = renderer.blocks[0]
    renderer.feed("goes on")
    assert renderer.blocks[0] is first
    assert renderer.open == '<p dir="auto">The end<br>\ngoes on</p>'


HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>",
    '<svg><a href="javascript:alert(1)"><text>click</text></a></svg>',
    "<style>body{display:none}</style>",
    '<div style="position:fixed;inset:0">over</div>',
    '<form action="https://evil.example"><input></form>',
    "<iframe srcdoc='<script>alert(1)</script>'>",
    "[click](javascript:alert(1))",
    "[click](JaVaScRiPt:alert(1))",
    "[click](data:text/html,<script>alert(1)</script>)",
    "[click](vbscript:x)",
    "[click](/api/chats)",
    "[click](//evil.example)",
    "<javascript:alert(1)>",
    '[a](https://a.example"onmouseover="alert(1))',
    "![x](https://evil.example/pixel.png)",
    "![x](data:image/svg+xml;base64,PHN2Zz4=)",
    "![x](javascript:alert(1))",
    "\\(\\text{<img src=x onerror=alert(1)>}\\)",
    "\\[\\href{javascript:alert(1)}{x}\\]",
    "$$\\style{position:fixed}{x}\\class{big}{y}\\rule{9999em}{9999em}$$",
    "```html\n<script>alert(1)</script>\n```",
    '```"><script>alert(1)</script>\nx\n```',
    "`<script>`",
    "| <script>alert(1)</script> |\n|---|\n| <img src=x> |",
]


@pytest.mark.parametrize("source", HOSTILE)
def test_what_a_model_writes_is_inert(source: str) -> None:
    for text in (source, f"- {source}", f"> {source}", f"# {source}"):
        out = "".join(render(text))
        tags = re.findall(r"<([a-zA-Z][\w-]*)((?:\s[^>]*)?)>", out)
        assert tags
        for name, attributes in tags:
            assert name.lower() not in {"script", "img", "svg", "style", "form", "input", "iframe", "object", "video"}
            assert not re.search(r"\s(on\w+|style|src|srcset|action|id|name)=", attributes), out
            for address in re.findall(r'href="([^"]*)"', attributes):
                assert address.startswith(("https://", "http://", "mailto:")), out
                assert 'rel="noopener noreferrer"' in attributes


def test_outside_pictures_become_links_that_name_their_host() -> None:
    (block,) = render("![a chart](https://pictures.example/x.png)")
    assert text_of(block) == "a chart (pictures.example)"
    assert "<img" not in block


@pytest.mark.parametrize(
    ("text", "formulas"),
    [
        ("It costs $5 and then $7.50.", 0),
        ("From $1 to $2, $$ is money", 0),
        ("so \\(i<j\\) holds", 1),
        ("\\[ a^2 + b^2 \\]", 1),
        ("$$\n\\frac{1}{2}\n$$", 1),
        ("text\n\\[ x \\]\nmore", 1),
        ("`\\(x\\)` is source", 0),
        ("```\n\\[x\\]\n$$y$$\n```", 0),
        ("open \\( x", 0),
        ("- in a list \\(x\\)\n\n  \\[ y \\]", 2),
    ],
)
def test_formulas_are_drawn_and_prices_stay_money(text: str, formulas: int) -> None:
    out = "".join(render(text))
    assert out.count("<math") == formulas
    if not formulas:
        assert text_of(out).count("$") == text.count("$")


def test_a_formula_the_converter_cannot_read_is_shown_as_its_source() -> None:
    assert mathml("\\frac{") is None
    (block,) = render("so \\(\\frac{\\) fails")
    assert text_of(block) == "so \\(\\frac{\\) fails"


@pytest.mark.parametrize("language", ["python", "makefile", "html", "", "nosuchlanguage", "c++"])
def test_code_keeps_every_character(language: str) -> None:
    code = "\n  two blanks\n\ttab <b> & 'quotes' \"double\"\n\n    four\n\nlast  "
    (block,) = render(f"```{language}\n{code}\n```")
    assert text_of(re.sub(r'<div class="code-head">.*?</div>', "", block)) == code


def test_an_open_fence_is_already_drawn_as_code() -> None:
    renderer = BlockRenderer("Look:\n\n```python\nprint(1)\n``")
    assert renderer.blocks == ['<p dir="auto">Look:</p>']
    assert 'class="code"' in renderer.open
    assert "``" not in renderer.open


@pytest.mark.parametrize(
    ("so_far", "shown"),
    [
        ("Some **bold", '<p dir="auto">Some <strong>bold</strong></p>'),
        ("Some **", '<p dir="auto">Some </p>'),
        ("Some `code", '<p dir="auto">Some <code>code</code></p>'),
        ("A paragraph\n-", '<p dir="auto">A paragraph</p>'),
        ("A paragraph\n#", '<p dir="auto">A paragraph</p>'),
        ("2 ** 3 ** 4", '<p dir="auto">2 ** 3 ** 4</p>'),
    ],
)
def test_half_written_marks_do_not_flicker(so_far: str, shown: str) -> None:
    assert re.sub(r"\s+</p>", "</p>", BlockRenderer(so_far).open) == re.sub(r"\s+</p>", "</p>", shown)


def test_right_to_left_text_takes_its_own_direction() -> None:
    assert render("שלום!\n\n- פריט\n\ntext") == (
        '<p dir="auto">שלום!</p>',
        '<ul dir="auto">\n<li>פריט</li>\n</ul>',
        '<p dir="auto">text</p>',
    )


def test_bare_addresses_become_links_without_their_full_stop() -> None:
    (block,) = render("See https://example.org/wiki/A_(b)_c, or (http://x.example).")
    assert re.findall(r'href="([^"]*)"', block) == ["https://example.org/wiki/A_(b)_c", "http://x.example"]
    assert text_of(block) == "See https://example.org/wiki/A_(b)_c, or (http://x.example)."


def test_the_last_line_of_code_is_coloured_like_the_others() -> None:
    (block,) = render("```diff\n- old\n+ new\n```")
    assert '<span class="gd">- old</span>\n<span class="gi">+ new</span></code>' in block


def test_task_boxes_take_the_place_of_bullets() -> None:
    (block,) = render("- [x] done\n- [ ] to do\n- plain")
    task = ' class="task"'
    assert re.findall(r"<li( class=\"task\")?>(.)", block) == [(task, "☑"), (task, "☐"), ("", "p")]


def test_a_link_says_where_it_leads_whatever_it_pretends() -> None:
    (block,) = render('[https://bank.example](https://evil.example/x "https://bank.example")')
    assert 'href="https://evil.example/x"' in block
    assert 'title="https://evil.example/x"' in block
    assert block.count("bank.example") == 1


def test_a_linked_picture_is_one_link() -> None:
    (block,) = render("[![build](https://badges.example/b.svg)](https://ci.example/run)")
    assert re.findall(r'href="([^"]*)"', block) == ["https://ci.example/run"]
    assert text_of(block) == "build"


@pytest.mark.parametrize(
    "text", ["[" * 20_000, "![" * 10_000, "*a_" * 6000, "$x$" * 6000, "|a" * 9000 + "\n" + "|-" * 9000 + "\n|x"]
)
def test_a_swarm_of_marks_is_shown_as_it_is_and_takes_no_time(text: str) -> None:
    begun = time.thread_time()  # of this thread alone: others may keep the machine busy
    renderer = BlockRenderer(text)
    shown = renderer.open
    renderer.finish()
    assert time.thread_time() - begun < 5  # without care: half a minute
    assert text_of("".join(renderer.blocks)).replace("\n", "") == text.replace("\n", "")
    assert len(shown) > 1000


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("Roses are red,\nViolets are blue,", '<p dir="auto">Roses are red,<br>\nViolets are blue,</p>'),
        ("> a\n> b", '<blockquote dir="auto">\n<p dir="auto">a<br>\nb</p>\n</blockquote>'),
        ("- one\n  two", '<ul dir="auto">\n<li>one<br>\ntwo</li>\n</ul>'),
        ("a<br>\nb  \nc\\\nd", '<p dir="auto">a<br>\nb<br>\nc<br>\nd</p>'),  # a break that is marked is still one
    ],
)
def test_a_line_ends_where_the_model_ended_it(source: str, shown: str) -> None:
    assert render(source) == (shown,)


def test_a_formula_over_several_lines_has_no_breaks() -> None:
    assert "<br>" not in "".join(render("so $$x\n+y$$\n\n\\[x\n+y\\]\n"))
