"""Figures: SVG that a page can colour, the same as PNG, the same bytes for the same numbers."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

pytest.importorskip("matplotlib")

from hopflow.report import figures


def paint(axes):
    axes.plot([1, 2, 3], [3, 2, 1], color=figures.colour(0), label="$x$ <b> & é")
    figures.points(axes, [1, 2, 3], [1, 2, 3], [0.1, 0.2, 0.3], 1, "other")
    figures.step_axis(axes)
    figures.legend(axes)


@pytest.fixture(scope="module")
def figure():
    return figures.drawn("one", 'A caption with "quotes" & <b>', paint, data={"x": [1, 2, 3]})


def test_a_figure_is_well_formed_in_a_page_and_by_itself(figure):
    ElementTree.fromstring(figure.svg)
    root = ElementTree.fromstring(figures.standalone(figure))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.get("role") == "img"
    assert root[0].text == 'A caption with "quotes" & <b>'
    assert figure.png.startswith(b"\x89PNG")


def test_in_a_page_every_colour_is_a_variable_with_the_colour_of_paper_to_fall_back_on(figure):
    assert "var(--c0, #2a6fbb)" in figure.svg
    assert "var(--ink, " in figure.svg
    assert not re.findall(r"#[0-9a-f]{6}", re.sub(r"var\(--\w+, #\w{6}\)", "", figure.svg))
    assert "var(" not in figures.standalone(figure)


def test_a_figure_names_no_address_and_brings_no_style_sheet(figure):
    assert "http" not in figure.svg
    assert "<style" not in figure.svg
    assert "<?xml" not in figure.svg


def test_text_stays_text_and_a_dollar_is_a_dollar(figure):
    assert "$x$ &lt;b&gt; &amp; é" in figure.svg


def test_the_same_numbers_give_the_same_bytes_and_figures_share_no_ids(figure):
    again, other = figures.drawn("one", figure.caption, paint), figures.drawn("two", figure.caption, paint)
    assert (again.svg, again.png) == (figure.svg, figure.png)
    ids = [set(re.findall(r'\bid="([^"]+)"', drawn.svg)) for drawn in (figure, other)]
    assert ids[0]
    assert not ids[0] & ids[1]
    for drawn, own in zip((figure, other), ids, strict=True):
        assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', drawn.svg)) <= own


def test_drawing_leaves_no_state_behind():
    import matplotlib

    before = dict(matplotlib.rcParams)
    figures.drawn("state", "", paint)
    assert dict(matplotlib.rcParams) == before


def test_nine_runs_differ_in_colour_or_dashes():
    assert len({(figures.colour(k), figures.dashes(k)) for k in range(32)}) == 32


def test_every_colour_is_a_variable_of_the_pages_style_in_both_schemes():
    from importlib.resources import files

    css = files("hopflow.report").joinpath("page.css").read_text()
    for variable in figures.VARIABLES.values():
        assert len(re.findall(rf"{variable}: #", css)) == 3, variable  # light, dark, print
