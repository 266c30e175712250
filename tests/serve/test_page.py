"""The page in Chromium with the server itself: what it shows is what `hf.generate` and `hf.infill` draw."""

import pytest
import torch
from chromium import Chromium, missing
from page_visits import drawn
from saved_networks import LENGTH, LETTERS

import hopflow as hf

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")
uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")

from live_server import running, served  # noqa: E402

from hopflow.serve.draw_request import SamplingFields  # noqa: E402
from hopflow.serve.limits import Limits  # noqa: E402
from hopflow.serve.served_flow import ServedFlow, samplers  # noqa: E402


@pytest.fixture(scope="module")
def flows() -> list[ServedFlow]:
    source = hf.Uniform(hf.Vocab(LETTERS.size))
    return [served(name, source, seed, (7.0, LENGTH)) for seed, name in enumerate(("first", "second"))]


@pytest.fixture(scope="module")
def address(flows):
    with running(flows, limits=Limits()) as site:
        yield site.address


@pytest.fixture
def visit(address):
    with Chromium.launched() as browser, browser.open(address, reduced_motion="reduce") as opened:
        drawn(opened)
        yield opened
        assert opened.errors == []
        assert all(url.startswith((address, "data:", "blob:")) for url in opened.requests)


def shown(visit, panel: int) -> tuple[str, str, str]:
    """Text, hops and network calls of a panel."""
    part = visit.page.locator(".panel").nth(panel).locator
    names = ("tokens", "hops", "calls")
    text, hops, calls = (str(part(f"[data-part='{name}']").text_content()) for name in names)
    return text, hops, calls


def written(flow: ServedFlow, tokens: torch.Tensor) -> str:
    """Tokens as the page writes them: symbols for a line break and for the end of a text."""
    text = str(flow.tokenizer.decode(tokens.tolist()))
    return text.replace("<|endoftext|>", "␃").replace("\n", "⏎")


def expected(flow: ServedFlow, out: hf.Generation) -> tuple[str, str, str]:
    return written(flow, out.tokens[0]), str(int(out.jumps[0])), str(int(out.calls[0]))


def test_two_flows_show_the_tokens_and_counts_of_generate(visit, flows):
    made = [hf.generate(each.model, each.flow, n=1, length=LENGTH, steps=32, seed=0) for each in flows]
    for panel, (flow, out) in enumerate(zip(flows, made, strict=True)):
        assert shown(visit, panel) == expected(flow, out)
    assert "runs/second against runs/first: " in visit.text("#difference")
    assert visit.page.locator("[data-part='predicted']").first.text_content() == "≈ 7 predicted"
    visit.page.locator("[aria-label='Time t, from noise to text']").fill("0")
    noise = written(flows[0], made[0].x0[0])
    assert [shown(visit, panel) for panel in (0, 1)] == [(noise, "0", "0")] * 2


def test_settings_of_the_page_are_those_of_generate(visit, flows):
    options = {"steps": 6, "eta": 0.5, "temperature": 0.8, "top_p": 0.9, "length": 9, "seed": 7}
    for name, value in options.items():
        visit.page.fill(f"#setting-{name}", str(value))
    visit.page.click("#draw")
    drawn(visit)
    for panel, flow in enumerate(flows):
        assert shown(visit, panel) == expected(flow, hf.generate(flow.model, flow.flow, n=1, **options))


def test_holes_are_filled_as_infill_fills_them(visit, flows):
    ids = hf.generate(flows[0].model, flows[0].flow, n=1, length=LENGTH, steps=32, seed=0).tokens
    for position in (2, 3):
        visit.page.locator(f".tokens >> nth=0 >> [data-position='{position}']").click(modifiers=["Shift"])
    visit.page.click("#draw-again")
    drawn(visit)
    ids[0, 2:4] = hf.HOLE
    for panel, each in enumerate(flows):
        assert shown(visit, panel) == expected(each, hf.infill(each.model, each.flow, ids, steps=32, seed=0))


def test_every_sampler_on_offer_draws_as_generate_does(visit, flows):
    names = visit.page.locator("#sampler option").evaluate_all("(options) => options.map((each) => each.value)")
    kinds = {each["name"]: each for each in samplers()}
    assert names == [name for name, each in kinds.items() if not each["needs_disjoint"]]
    for name in names:
        visit.page.select_option("#sampler", name)
        visit.page.click("#draw")
        drawn(visit)
        assert visit.texts(".panel .error") == ["", ""], name
        assert not visit.page.locator("#message").is_visible()
        seed = int(visit.page.input_value("#setting-seed"))
        asked = SamplingFields(sampler=name, steps=32 if kinds[name]["has_steps"] else None, seed=seed)
        for panel, flow in enumerate(flows):
            out = hf.generate(flow.model, flow.flow, n=1, length=LENGTH, **asked.options(Limits()))
            assert shown(visit, panel) == expected(flow, out), name
