"""Text that came from a run cannot become part of a page or of a document."""

import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopflow.report.escaping import fence, html, markdown, markdown_prose, prose, script_json
from hopflow.report.legible import legible

HOSTILE = (
    "<script>alert(1)</script>",
    "</pre><img src=x onerror=alert(1)>",
    "'\" onclick=x",
    "<!-- -->",
    "]]>",
    "&amp;",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_markup_is_shown_not_heeded(text):
    assert not re.search(r"[<>\"']", html(text))


def test_control_characters_are_pictures_and_lone_surrogates_are_replaced():
    assert legible("\x1b[31mred\x07\x7f") == "␛[31mred␇␡"
    assert legible("\ud800") == "\ufffd"
    assert legible("\x85") == "\ufffd"
    legible("\ud83d\ude00\x00").encode()


def test_line_ends_joiners_and_right_to_left_scripts_stay():
    for text in ("a\n\tb", "שלום", "می\u200cخواهم", "👩\u200d🚀"):
        assert legible(text) == text


class _Collector(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.data = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, attrs))

    def handle_data(self, data):
        self.data.append(data)


@given(st.text())
def test_any_text_between_tags_is_read_back_as_it_was_written(text):
    reader = _Collector()
    reader.feed(f"<p title='{html(text)}'>{html(text)}</p>")
    reader.close()
    assert [tag for tag, _ in reader.tags] == ["p"]
    assert "".join(reader.data) == legible(text)
    assert reader.tags[0][1] == [("title", legible(text))]


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.lists(st.text())))
def test_data_in_a_script_element_cannot_end_it_and_is_read_back(content):
    text = script_json(content)
    assert not re.search(r"[<>&\u2028\u2029]", text)
    assert json.loads(text) == content


def test_data_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match="JSON"):
        script_json({"x": float("nan")})


def test_backticks_in_a_paragraph_are_code_and_nothing_else_is_markup():
    assert prose("run `hopflow eval <x>` & see") == "run <code>hopflow eval &lt;x&gt;</code> &amp; see"
    assert markdown_prose("run `a_b` on *x*") == r"run `a_b` on \*x\*"


def test_a_cell_of_a_markdown_table_stays_one_cell():
    assert markdown("a|b\nc") == r"a\|b c"
    assert markdown("<b>[x](y)") == r"\<b\>\[x\](y)"


def test_a_fence_is_longer_than_what_it_holds():
    text = "```\nnot the end\n````"
    assert fence(text) == f"`````text\n{text}\n`````"
