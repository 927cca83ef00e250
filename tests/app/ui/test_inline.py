"""What stands inside a line: emphasis beside Chinese, formulas that are no prices, and marks that nobody closed."""

from __future__ import annotations

import html
import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.app.ui.mathml import mathml
from octavo.app.ui.render import BlockRenderer, render


def text_of(fragment: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", fragment))


def line(text: str, **options: bool) -> str:
    return "".join(render(text, **options)).removeprefix('<p dir="auto">').removesuffix("</p>")


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("**“重点”**在这里", "<strong>“重点”</strong>在这里"),
        ("这是**重点。**后面", "这是<strong>重点。</strong>后面"),
        ("請看**（注意）**這裡", "請看<strong>（注意）</strong>這裡"),
        ("これは**「重要」**です", "これは<strong>「重要」</strong>です"),
        ("이것은*“강조”*입니다", "이것은<em>“강조”</em>입니다"),
        ("**你好**世界", "<strong>你好</strong>世界"),
        ("2 ** 3 ** 4", "2 ** 3 ** 4"),
        ("snake_case_name 和 下_划_线", "snake_case_name 和 下_划_线"),
        ("a**“b”**c", "a**“b”**c"),  # CommonMark's rule where words are set apart by blanks
    ],
)
def test_emphasis_works_beside_chinese_japanese_and_korean(source: str, shown: str) -> None:
    assert line(source) == shown


@pytest.mark.parametrize(
    "source",
    [
        *("so $x^2$ holds", "so $x$, then", "($n = 5$)", "is $\\frac{1}{2}$.", "let $a_i$ be", "$a + b < c$"),
        *("$f'$ is", "the $10^6$ of them", "$f(x) = 2x$", "若$x_1$为正"),
    ],
)
def test_single_dollars_enclose_what_can_only_be_a_formula(source: str) -> None:
    assert 'class="math inline"' in line(source)
    assert "$" not in text_of(line(source))


@pytest.mark.parametrize(
    "source",
    [
        *(
            "It costs $5 and then $7.50.",
            "$5-$10",
            "from $1,000 to $2,000",
            "US$5_a and A$7_b",
            "$5k$",
            "$5$ or $6.50$",
        ),
        *(
            "set $HOME_DIR and $PATH",
            "$A_B$C",
            "echo $x; echo $y_1",
            "a $ b $ c",
            "$ x^2 $",
            "$$ is money",
            "\\$x^2\\$",
        ),
        *("\\$x^2\\$", "pay $I owe you$ now", "$5 per user, $3 per bot", "`$x^2$`", "$not a formula$", "$$$", "$"),
    ],
)
def test_prices_and_variables_stay_text(source: str) -> None:
    assert "<math" not in line(source)
    assert text_of(line(source)).count("$") == source.count("$")


@pytest.mark.parametrize(
    ("source", "blocks"),
    [
        ("\\begin{equation}\na = b\n\\end{equation}", ["math"]),
        ("Thus\n\\begin{align*}\na &= b \\\\\nc &= d\n\\end{align*}\nholds", ["p", "math", "p"]),
        ("Then $$\nx = 1\n$$", ["p"]),
        ("Then $$\nx = 1\n$$ follows\n\nand more", ["p", "p"]),
        ("\\begin{figure}\nx\n\\end{figure}", ["p"]),
    ],
)
def test_formulas_are_found_where_models_write_them(source: str, blocks: list[str]) -> None:
    out = render(source)
    assert ["math" if 'class="math' in block[:20] else "p" for block in out] == blocks
    assert ("<math" in "".join(out)) == ("figure" not in source)


def test_equations_have_no_numbers_that_would_always_be_one() -> None:
    drawn = mathml("\\begin{align}a&=b\\label{eq:a}\\\\c&=d\\nonumber\\end{align}", display=True)
    assert drawn is not None
    assert "(1)" not in drawn
    assert "label" not in drawn
    assert "nonumber" not in drawn


def test_chemical_formulas_have_lowered_counts_and_raised_charges() -> None:
    drawn = mathml("\\ce{2H2O + SO4^2- -> X}")
    assert drawn is not None
    assert drawn.count("<msub>") + drawn.count("<msubsup>") == 2
    assert "→" in drawn
    assert "ce" not in text_of(drawn)


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("one<br>two<br/>three", "one<br>\ntwo<br>\nthree"),
        ("H<sub>2</sub>O and x<SUP>2</SUP>", "H<sub>2</sub>O and x<sup>2</sup>"),
        ("press <kbd>Ctrl</kbd>", "press <kbd>Ctrl</kbd>"),
        ("<sub onclick=x>2</sub>", "&lt;sub onclick=x&gt;2&lt;/sub&gt;"),
        ("<sup><b>x</b></sup>", "&lt;sup&gt;&lt;b&gt;x&lt;/b&gt;&lt;/sup&gt;"),
        ("<br onload=x>", "&lt;br onload=x&gt;"),
        ("`<br>`", "<code>&lt;br&gt;</code>"),
    ],
)
def test_three_bare_tags_mean_something_and_all_others_are_text(source: str, shown: str) -> None:
    assert line(source) == shown


OPEN_ENDS = [
    ("some **bold", "some <strong>bold</strong>"),
    ("some *slanted", "some <em>slanted</em>"),
    ("***both", "<em><strong>both</strong></em>"),
    ("a ~~gone", "a <s>gone</s>"),
    ("see `code", "see <code>code</code>"),
    ("**see `code", "<strong>see <code>code</code></strong>"),
    ("say **", "say "),
    ("2 ** 3", "2 ** 3"),
    ("2*3", "2*3"),
    ("5 ** 2 ** 3 **x", "5 ** 2 ** 3 <strong>x</strong>"),
    ("is \\(x^2", 'is <span class="math-source">\\(x^2</span>'),
    ("**“你好", "<strong>“你好</strong>"),
]


@pytest.mark.parametrize(("source", "shown"), OPEN_ENDS)
def test_a_stopped_reply_shows_no_half_marks(source: str, shown: str) -> None:
    assert line(source, cut=True).rstrip() == shown.rstrip()
    renderer = BlockRenderer(source)
    renderer.finish(cut=True)
    assert tuple(renderer.blocks) == render(source, cut=True)


@pytest.mark.parametrize(("source", "shown"), OPEN_ENDS)
def test_nor_does_one_that_is_being_written(source: str, shown: str) -> None:
    out = BlockRenderer(source).open.removeprefix('<p dir="auto">').removesuffix("</p>")
    assert out.rstrip() == shown.rstrip()


@pytest.mark.parametrize(
    ("so_far", "shown"),
    [
        ("- one\n- two **b", "two <strong>b</strong>"),
        ("> quoted *q", "quoted <em>q</em>"),
        ("| a | b |\n|---|---|\n| **c", "<strong>c</strong>"),
        ("# A **head", "A <strong>head</strong>"),
        ("some **bold*", "some <strong>bold</strong>"),
        ("see [the page](https://exam", "see the page"),
        ("see ![a chart](https://exam", "see a chart"),
    ],
)
def test_marks_are_closed_wherever_the_text_ends(so_far: str, shown: str) -> None:
    assert shown in BlockRenderer(so_far).open


def test_a_finished_reply_keeps_its_stray_marks() -> None:
    assert line("use *args and `x") == "use *args and `x"
    assert line("5 ** 2 and **bold") == "5 ** 2 and **bold"


MARKS = [
    *("*", "**", "***", "_", "~~", "`", "``", "$", "$$", "\\(", "\\)", "[", "](", ")", "a", " b ", "。", "“", "好"),
    *("\n", "|"),
]


@given(st.lists(st.sampled_from(MARKS), max_size=24).map("".join))
@settings(max_examples=300, deadline=None)
def test_whatever_is_cut_where_is_well_formed(text: str) -> None:
    for shown in ("".join(render(text, cut=True)), BlockRenderer(text).open):
        stack: list[str] = []
        for closing, name in re.findall(r"<(/?)([a-z0-9]+)", shown):
            if name in ("br", "hr"):
                continue
            if closing:
                assert stack
                assert stack.pop() == name
            else:
                stack.append(name)
        assert stack == []


def test_a_growing_reply_never_loses_what_was_shown() -> None:
    """Signs may come and go while it is written; letters only come."""
    source = "The **keeper** had `not` slept, *not* for [three](https://a.example) nights: \\(x^2\\) and ~~so~~ on."
    seen = [re.sub(r"\W", "", text_of(BlockRenderer(source[:end]).open)) for end in range(len(source))]
    for before, after in pairwise(seen):
        assert after.startswith(before[:-1])
