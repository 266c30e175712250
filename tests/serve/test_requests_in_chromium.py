"""What the page in Chromium asks of the server, and what it says if the server refuses, fails or is slow."""

from dataclasses import replace

import pytest
from chromium import missing
from page_server import PageServer
from page_visits import SLIDER, STILL, count, draw, drawn, known, states, tokens, written

pytestmark = [pytest.mark.slow, pytest.mark.skipif(missing() is not None, reason=missing() or "")]


FRAMES = "async () => { for (let i = 0; i < 9; i += 1) await new Promise(requestAnimationFrame); }"
"""Wait while the page shows nine pictures."""


def fails(visit, message: str) -> None:
    """Press Draw, and wait for a message and for the end of the draw."""
    visit.page.click("#draw")
    visit.page.locator("#message", has_text=message).wait_for()
    visit.page.locator("#panels[aria-busy='false']").wait_for()


def test_events_arrive_in_any_pieces(browser):
    flow = written(["世", "界", "a"])
    with PageServer([flow], chunk=7, delay=0.001).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        assert tokens(visit) == "世界a"
        assert count(visit, "hops") == "3"
        assert visit.errors == []


def test_a_draw_that_ends_early_is_an_error(browser):
    with (
        PageServer([written(["a", "b"])], complete=False).running() as server,
        browser.open(server.address, **STILL) as visit,
    ):
        visit.page.locator(".panel .error", has_text="The connection ended").wait_for()
        assert visit.page.locator("#save").is_disabled()
        server.complete = True
        draw(visit)
        assert tokens(visit) == "ab"
        assert visit.page.locator(".panel .error").is_hidden()


def test_a_flow_that_fails_does_not_stop_the_other(browser):
    class Half(PageServer):
        def events(self, request):
            for name, data in super().events(request):
                fails = name == "frame" and request["flow"] == "runs/b"
                yield ("error", {"message": "out of memory"}) if fails else (name, data)

    flows = [known(["?", "?"], [(0.1, 0, "a"), (0.9, 1, "b")], name=name) for name in ("runs/a", "runs/b")]
    server = Half(flows)
    server.going.clear()
    with server.running(), browser.open(server.address) as visit:
        visit.page.locator(".panel .error", has_text="out of memory").wait_for()
        visit.page.locator(".tokens", has_text="a?").wait_for()
        assert visit.page.locator("#save").is_disabled()
        server.going.set()
        drawn(visit)
        assert tokens(visit, 0) == "ab"
        assert set(states(visit, 0)) == {"token final"}
        assert visit.page.locator("#difference").is_hidden()


def test_a_server_that_is_gone_is_named_and_can_come_back(browser):
    with PageServer([written(["a"])]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        visit.page.route("**/api/draw", lambda route: route.abort())
        visit.page.click("#draw")
        visit.page.locator(".panel .error", has_text="The server does not answer").wait_for()
        visit.page.locator("#panels[aria-busy='false']").wait_for()
        visit.page.unroute("**/api/draw")
        draw(visit)
        assert visit.page.locator(".panel .error").is_hidden()


def test_a_busy_server_is_asked_four_times_again_after_the_time_that_it_names(browser):
    with PageServer([written(["a"])]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        visit.stop_clock()
        for busy in (4, 5):
            server.busy, server.refused = busy, 0
            visit.page.click("#draw")
            for seconds in (1, 2, 3, 4):
                visit.page.locator("#message", has_text=f"Asking again in {seconds} second").wait_for()
                assert server.refused == seconds
                visit.page.clock.run_for(1000 * seconds)
            if busy == 4:
                drawn(visit)
            else:
                visit.page.locator(".panel .error", has_text="the queue is full").wait_for()


def test_a_new_draw_closes_the_connection_of_the_one_before(browser):
    flow = known(["a"] * 40, [((i + 1) / 50, i, "x") for i in range(40)])
    server = PageServer([flow])
    server.going.clear()
    with server.running(), browser.open(server.address, **STILL) as visit:
        visit.page.locator(".tokens .token").first.wait_for()
        visit.page.fill("#setting-seed", "7")
        with visit.page.expect_event("requestfailed", lambda request: request.url.endswith("/api/draw")):
            visit.page.click("#draw")
        server.going.set()
        drawn(visit)
        assert [request["seed"] for request in server.draws] == [0, 7]
        assert tokens(visit) == "x" * 40
        assert visit.page.locator("#message").is_hidden()


def test_the_slider_waits_for_the_end_of_a_draw_and_hops_for_the_server(browser):
    flow = known(["a", "b"], [(0.1, 0, "x"), (0.9, 1, "x")])
    server = PageServer([flow])
    server.going.clear()
    with server.running(), browser.open(server.address) as visit:
        visit.page.select_option("[aria-label='Speed']", "4")
        visit.page.locator(".clock", has_text="t = 0.10").wait_for()
        visit.run(FRAMES)
        assert visit.text(".clock") == "t = 0.10"
        assert visit.page.locator(SLIDER).is_disabled()
        server.going.set()
        drawn(visit)
        assert visit.page.locator(SLIDER).is_enabled()


# -- prompts -----------------------------------------------------------------------------------------------------------


def test_a_prompt_without_room_for_the_rest_is_refused_and_a_hole_alone_is_one_token(browser, flows):
    with PageServer(flows[:1]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        visit.page.fill("#setting-length", "4")
        visit.page.fill("#prompt", "the [MASK]")
        fails(visit, "The prompt has 5 tokens and holes, the length is 4.")
        visit.page.fill("#prompt", "the ")
        fails(visit, "There is nothing to draw: the prompt fills the length.")
        visit.page.fill("#prompt", "the[MASK]")
        draw(visit)
        assert [entry is None for entry in server.draws[-1]["prompt"]] == [False] * 3 + [True]
        assert visit.page.locator("#message").is_hidden()
        assert len(server.draws) == 2


def test_the_last_prompt_is_drawn_again_with_the_next_seed(browser):
    with (
        PageServer([written(["the", " cat"], others=(" dog",))]).running() as server,
        browser.open(server.address, **STILL) as visit,
    ):
        drawn(visit)
        visit.page.fill("#prompt", "the")
        draw(visit)
        prompt = server.draws[-1]["prompt"]
        assert [entry is None for entry in prompt] == [False, True]
        visit.page.fill("#prompt", "")
        draw(visit, "#draw-again")
        assert (server.draws[-1]["prompt"], server.draws[-1]["seed"]) == (prompt, 1)
        assert visit.page.input_value("#setting-seed") == "1"
        draw(visit)
        assert server.draws[-1]["prompt"] is None


def test_after_the_largest_seed_the_first_one_is_drawn(browser):
    with PageServer([written(["a"])]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        visit.page.fill("#setting-seed", str(2**31 - 1))
        draw(visit)
        draw(visit)
        assert [request["seed"] for request in server.draws] == [0, 2**31 - 1, 0]


# -- settings ----------------------------------------------------------------------------------------------------------


def test_a_sampler_without_steps_is_asked_without_them(browser, masked):
    with PageServer([masked]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        visit.page.fill("#setting-eta", "0.5")
        draw(visit)
        assert (server.draws[-1]["eta"], server.draws[-1]["steps"]) == (0.5, 32)
        assert count(visit, "predicted") == "≈ 40 predicted for η = 0"
        visit.page.select_option("#sampler", "random_order")
        for name in ("steps", "eta"):
            assert visit.page.locator(f"#setting-{name}").is_disabled()
        assert visit.page.locator("#setting-seed").is_enabled()
        draw(visit)
        assert server.draws[-1]["sampler"] == "random_order"
        assert server.draws[-1]["eta"] == 0
        assert "steps" not in server.draws[-1]
        assert (count(visit, "calls"), count(visit, "steps")) == ("40", "one per token")
        assert count(visit, "predicted") == "≈ 40 predicted"
        visit.page.select_option("#sampler", "euler")
        assert visit.page.locator("#setting-steps").is_enabled()


def test_only_samplers_that_suit_all_flows_are_on_offer(browser, flows, masked):
    samplers = "(options) => options.map((option) => option.value)"
    for served, names in (([masked], ["euler", "random_order"]), ([masked, flows[0]], ["euler"])):
        with PageServer(served).running() as server, browser.open(server.address, **STILL) as visit:
            drawn(visit)
            assert visit.page.locator("#sampler option").evaluate_all(samplers) == names


def test_a_setting_out_of_range_is_not_drawn(browser, flows):
    short = replace(flows[0], longest=64)
    with PageServer([flows[1], short]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        asked = len(server.draws)
        for name, value in (("length", "65"), ("steps", "0"), ("temperature", "2.5"), ("seed", "")):
            visit.page.fill(f"#setting-{name}", value)
            visit.page.click("#draw")
            assert visit.run("() => document.querySelector('#panels').ariaBusy") == "false"
            assert visit.run("() => document.querySelector(':invalid:not(form, fieldset)').name") == name
            visit.page.click("#reset")
        assert len(server.draws) == asked
        visit.page.locator("[data-position='0']").first.click()
        visit.page.fill("#setting-steps", "0")
        visit.page.click("#draw-again")
        visit.page.wait_for_function("() => document.activeElement.name === 'steps'")
        assert len(server.draws) == asked
        visit.page.click("#reset")
        draw(visit)
        assert server.draws[-1]["length"] == 40


def test_defaults_are_restored_and_a_new_seed_is_drawn_at_once(browser, flows):
    with PageServer(flows[:1]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        for name, value in (("steps", "8"), ("eta", "1"), ("top_p", "0.5"), ("seed", "5")):
            visit.page.fill(f"#setting-{name}", value)
        visit.page.click("#reset")
        hints = visit.page.locator("#setting-top_p").get_attribute("aria-describedby")
        assert visit.text(f"#{hints}") == "1: all tokens"
        values = [visit.page.input_value(f"#setting-{name}") for name in ("steps", "eta", "top_p", "length", "seed")]
        assert values == ["32", "0", "1", "40", "0"]
        assert visit.page.locator("[aria-label='Steps, slider']").input_value() == "5"  # as a power of two
        visit.run("() => { Math.random = () => 0.123456; }")
        draw(visit, "#dice")
        assert server.draws[-1]["seed"] == 123456
        assert visit.page.input_value("#setting-seed") == "123456"


def test_one_of_two_flows_is_drawn_alone_and_the_second_steps_only_where_they_mean_something(browser, flows):
    with PageServer(flows).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        assert visit.page.locator("#setting-second_steps").is_hidden()
        visit.page.select_option("#show", "flow runs/second")
        draw(visit)
        assert visit.texts("h2") == ["runs/second"]
        assert visit.page.locator(".panel").count() == 1
        assert visit.page.locator("#difference").is_hidden()
        visit.page.select_option("#show", "steps runs/second")
        visit.page.fill("#setting-second_steps", "2")
        draw(visit)
        assert sorted(request["steps"] for request in server.draws[-2:]) == [2, 32]
        assert {request["flow"] for request in server.draws[-2:]} == {"runs/second"}
        assert visit.page.locator(".panel").count() == 2
