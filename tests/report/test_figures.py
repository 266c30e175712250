"""Figures: SVG with CSS variables as colors, PNG, and equal bytes for equal numbers."""

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
    return figures.draw_figure("one", 'A caption with "quotes" & <b>', paint, data={"x": [1, 2, 3]})


def test_the_svg_of_a_figure_is_well_formed_inline_and_as_a_file(figure):
    ElementTree.fromstring(figure.svg)
    root = ElementTree.fromstring(figures.standalone(figure))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.get("role") == "img"
    assert root[0].text == 'A caption with "quotes" & <b>'
    assert figure.png.startswith(b"\x89PNG")


def test_inline_colours_are_css_variables_with_a_default(figure):
    assert "var(--c0, #2a6fbb)" in figure.svg
    assert "var(--ink, " in figure.svg
    assert not re.findall(r"#[0-9a-f]{6}", re.sub(r"var\(--\w+, #\w{6}\)", "", figure.svg))
    assert "var(" not in figures.standalone(figure)


def test_inline_svg_has_no_urls_and_no_style_sheet(figure):
    assert "http" not in figure.svg
    assert "<style" not in figure.svg
    assert "<?xml" not in figure.svg


def test_svg_text_stays_text_and_dollars_are_not_math(figure):
    assert "$x$ &lt;b&gt; &amp; é" in figure.svg


def test_the_same_numbers_give_the_same_bytes_and_figures_share_no_ids(figure):
    again, other = figures.draw_figure("one", figure.caption, paint), figures.draw_figure("two", figure.caption, paint)
    assert (again.svg, again.png) == (figure.svg, figure.png)
    ids = [set(re.findall(r'\bid="([^"]+)"', drawn.svg)) for drawn in (figure, other)]
    assert ids[0]
    assert not ids[0] & ids[1]
    for drawn, own in zip((figure, other), ids, strict=True):
        assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', drawn.svg)) <= own


def test_drawing_does_not_change_the_settings_of_matplotlib():
    import matplotlib

    before = dict(matplotlib.rcParams)
    figures.draw_figure("state", "", paint)
    assert dict(matplotlib.rcParams) == before


def test_thirty_two_runs_differ_in_colour_or_dashes():
    assert len({(figures.colour(k), figures.dashes(k)) for k in range(32)}) == 32


def test_page_css_sets_every_colour_for_light_dark_and_print():
    from importlib.resources import files

    css = files("hopflow.report").joinpath("page.css").read_text()
    for variable in figures.VARIABLES.values():
        assert len(re.findall(rf"{variable}: #", css)) == 3, variable  # light, dark, print
