"""Escaping: text from a run never becomes HTML or markdown markup."""

import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopflow.report import markdown, page
from hopflow.report.markdown import escape_markdown, fence
from hopflow.report.page import escape_html, script_json
from hopflow.system.safe_text import printable

HOSTILE = (
    "<script>alert(1)</script>",
    "</pre><img src=x onerror=alert(1)>",
    "'\" onclick=x",
    "<!-- -->",
    "]]>",
    "&amp;",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_markup_in_text_is_escaped(text):
    assert not re.search(r"[<>\"']", escape_html(text))


def test_control_characters_become_symbols_and_lone_surrogates_are_replaced():
    assert printable("\x1b[31mred\x07\x7f") == "␛[31mred␇␡"
    assert printable("\ud800") == "\ufffd"
    assert printable("\x85") == "\ufffd"
    printable("\ud83d\ude00\x00").encode()


def test_line_ends_joiners_and_right_to_left_scripts_are_unchanged():
    for text in ("a\n\tb", "שלום", "می\u200cخواهم", "👩\u200d🚀"):
        assert printable(text) == text


class _Collector(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.data = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, attrs))

    def handle_data(self, data):
        self.data.append(data)


@given(st.text())
def test_escaped_text_is_read_back_unchanged_by_an_html_parser(text):
    reader = _Collector()
    reader.feed(f"<p title='{escape_html(text)}'>{escape_html(text)}</p>")
    reader.close()
    assert [tag for tag, _ in reader.tags] == ["p"]
    assert "".join(reader.data) == printable(text)
    assert reader.tags[0][1] == [("title", printable(text))]


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.lists(st.text())))
def test_data_in_a_script_element_cannot_end_it_and_is_read_back(content):
    text = script_json(content)
    assert not re.search(r"[<>&\u2028\u2029]", text)
    assert json.loads(text) == content


def test_nan_in_script_data_is_an_error():
    with pytest.raises(ValueError, match="JSON"):
        script_json({"x": float("nan")})


def test_backticks_in_a_paragraph_are_code_and_nothing_else_is_markup():
    assert page.escape_paragraph("run `hopflow eval <x>` & see") == "run <code>hopflow eval &lt;x&gt;</code> &amp; see"
    assert markdown.escape_paragraph("run `a_b` on *x*") == r"run `a_b` on \*x\*"


def test_a_cell_of_a_markdown_table_stays_one_cell():
    assert escape_markdown("a|b\nc") == r"a\|b c"
    assert escape_markdown("<b>[x](y)") == r"\<b\>\[x\](y)"


def test_a_fence_is_longer_than_any_fence_in_its_text():
    text = "```\nnot the end\n````"
    assert fence(text) == f"`````text\n{text}\n`````"
