"""Films: what stands at time t, in Python and in the page's script, is what the generation says."""

import json
import shutil
import subprocess
from dataclasses import replace
from importlib.resources import files

import pytest
import torch

import hopflow as hf
from hopflow import report
from hopflow.data.tokenizers import Bytes, Characters
from hopflow.report import player
from hopflow.report.film import BYTES, FINAL, MASKED, MOVED, PROMPT, SOURCE, film, stills
from hopflow.report.section import Player

LETTERS = Characters("\n <>abcdeאבג", ends=True)
MOMENTS = (0.0, 0.01, 0.25, 0.5, 0.77, 0.99, 1.0)


def random_network(data: int):
    def network(xt: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return torch.randn(*xt.shape, data, generator=torch.Generator().manual_seed(0))

    return network


def drawn(source: hf.Source, n: int = 3, length: int = 20, **how):
    """Under Plain, tokens hop often."""
    flow = hf.Flow(source, prediction=hf.Plain())
    how = {"steps": 16, "seed": 3, "trajectory": True, **how}
    return hf.generate(random_network(source.vocab.data), flow, n=n, length=length, **how)


SOURCES = {
    "uniform": hf.Uniform(hf.Vocab(LETTERS.size)),
    "mask": hf.Mask(hf.Vocab(LETTERS.size, 1)),
    "multimask": hf.MultiMask(hf.Vocab(LETTERS.size, 5)),
}


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("t", MOMENTS)
def test_a_still_shows_the_tokens_that_stand_at_its_time(name, t):
    out = drawn(SOURCES[name])
    found, assumed = stills(film(out, LETTERS, LETTERS.size), t), out.at(t)
    assert len(found) == 3
    for row, still in zip(assumed.tolist(), found, strict=True):
        for token, (text, _) in zip(row, still.tokens, strict=True):
            assert text == ("░" if token >= LETTERS.size else _symbol(token))


@pytest.mark.parametrize("t", MOMENTS)
def test_a_still_counts_the_hops_before_its_time(t):
    out = drawn(SOURCES["uniform"])
    for row, still in enumerate(stills(film(out, LETTERS, LETTERS.size), t)):
        assert still.jumps == int(((out.hops.row == row) & (out.hops.t < t)).sum())


def test_tokens_are_source_until_they_move_and_final_after_their_last_hop():
    out = drawn(SOURCES["uniform"], n=1)
    seen = film(out, LETTERS, LETTERS.size)
    last = torch.full((20,), -1.0).double().scatter_reduce(0, out.hops.position, out.hops.t, "amax")
    for t in (0.0, 0.3, 0.6):
        for position, (_, state) in enumerate(stills(seen, t)[0].tokens):
            before = ((out.hops.position == position) & (out.hops.t < t)).any()
            if not before:
                assert state == SOURCE
            elif float(last[position]) >= t:
                assert state == MOVED
            elif float(last[position]) < t - seen["glow"]:
                assert state == FINAL
    assert {state for _, state in stills(seen, 1.0)[0].tokens} == {FINAL}
    assert {state for _, state in stills(seen, 0.0)[0].tokens} == {SOURCE}


def test_a_hop_glows_for_a_moment():
    seen = {
        "glow": 0.1,
        "times": [0.5],
        "texts": ["a", "b"],
        "sequences": [{"source": [0], "prompt": [], "hops": [0, 0, 1], "direction": "ltr"}],
    }
    assert [stills(seen, t)[0].tokens[0] for t in (0.5, 0.55, 0.7)] == [("a", SOURCE), ("b", MOVED), ("b", FINAL)]


def test_a_prompt_is_shown_as_one_and_never_moves():
    prompt = torch.full((1, 6), hf.HOLE)
    prompt[0, 1] = LETTERS.encode("a")[0]
    flow = hf.Flow(SOURCES["mask"])
    out = hf.infill(random_network(LETTERS.size), flow, prompt, steps=4, trajectory=True, seed=0)
    for t in MOMENTS:
        assert stills(film(out, LETTERS, LETTERS.size), t)[0].tokens[1] == ("a", PROMPT)


def test_a_mask_is_as_wide_as_what_it_becomes():
    seen = {
        "glow": 0.1,
        "times": [0.5],
        "texts": ["word", "!"],
        "sequences": [{"source": [MASKED, MASKED], "prompt": [], "hops": [0, 0, 0, 0, 1, 1], "direction": "ltr"}],
    }
    assert stills(seen, 0.2)[0].text == "░░░░░"


def test_sequences_that_never_hop_have_a_film_too():
    source = SOURCES["uniform"]

    def stay(xt: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return 1e4 * torch.nn.functional.one_hot(xt, LETTERS.size).float()

    out = hf.generate(stay, hf.Flow(source), n=2, length=5, steps=4, trajectory=True)
    seen = film(out, LETTERS, LETTERS.size)
    assert [still.jumps for still in stills(seen, 1.0)] == [0, 0]
    assert seen["times"] == []
    assert stills(seen, 0.0)[0].text == stills(seen, 1.0)[0].text
    assert "<ol" in player.markup(Player("p", seen))


def test_no_sequences_make_an_empty_player():
    empty = {"glow": 0.1, "times": [], "texts": [], "sequences": []}
    assert stills(empty, 0.5) == []
    assert '<span class="hop-total">0</span>' in player.markup(Player("p", empty))


def test_a_film_keeps_within_its_size_by_fewer_sequences(monkeypatch):
    out = drawn(SOURCES["uniform"], n=6, length=200, steps=64)
    whole = film(out, LETTERS, LETTERS.size)
    assert len(whole["sequences"]) == 4
    size = len(json.dumps(whole, separators=(",", ":")))
    assert size < BYTES
    monkeypatch.setattr("hopflow.report.film.BYTES", size // 2)
    fewer = film(out, LETTERS, LETTERS.size)
    assert 1 <= len(fewer["sequences"]) < 4
    assert fewer["sequences"] == whole["sequences"][: len(fewer["sequences"])]


def test_four_sequences_of_1024_tokens_fit():
    out = drawn(hf.Uniform(hf.Vocab(256)), n=4, length=1024, steps=32)
    assert len(json.dumps(film(out, Bytes(), 256), separators=(",", ":"))) < BYTES


def test_bytes_that_are_no_text_alone_are_shown_all_the_same():
    out = drawn(hf.Uniform(hf.Vocab(256)), n=2, length=40)
    (one, two) = stills(film(out, Bytes(), 256), 0.5)
    assert "\ufffd" in one.text + two.text
    assert all(text for text, _ in one.tokens)


def test_text_cannot_steer_the_page():
    evil = Characters("".join(sorted(set('<script>alert("1")</script>&\x1b[31m\u202e\n'))))
    out = drawn(hf.Uniform(hf.Vocab(evil.size)), n=2, length=60)
    shown = player.markup(Player('"><script>', film(out, evil, evil.size)))
    inside = shown.split('<script type="application/json">')[1].split("</script>")[0]
    assert "<" not in inside
    assert "&" not in inside
    assert json.loads(inside)["sequences"]
    assert shown.count("<script") == 1
    assert "\x1b" not in shown
    assert "\u202e" not in shown


def test_lines_run_in_the_direction_of_the_finished_text():
    out = drawn(SOURCES["uniform"], n=1, length=4)
    hebrew = replace(out, tokens=torch.tensor([LETTERS.encode("> אב")]))
    latin = replace(out, tokens=torch.tensor([LETTERS.encode("<aאב")]))
    assert film(hebrew, LETTERS, LETTERS.size)["sequences"][0]["direction"] == "rtl"
    assert film(latin, LETTERS, LETTERS.size)["sequences"][0]["direction"] == "ltr"
    assert 'dir="rtl"' in player.markup(Player("p", film(hebrew, LETTERS, LETTERS.size)))


# the script


def script(expression: str) -> object:
    """What an expression over the page's script gives, without a page."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node to run the page's script in")
    source = files(report).joinpath("player.js").read_text(encoding="utf-8")
    program = f"{source}\nprocess.stdout.write(JSON.stringify({expression}));"
    done = subprocess.run([node, "-"], input=program, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", SOURCES)
def test_the_script_shows_what_the_stills_show(name):
    seen = film(drawn(SOURCES[name]), LETTERS, LETTERS.size)
    shown = """(() => { const film = %s; return %s.map((t) => film.sequences.map((sequence) => {
        const now = hopPlayer.standing(film, sequence, t), end = hopPlayer.final(sequence);
        return [now.tokens.map((token, i) => [hopPlayer.shown(film, token, end[i]), now.states[i]]), now.jumps];
    })); })()"""
    found = script(shown % (json.dumps(seen), json.dumps(MOMENTS)))
    for t, rows in zip(MOMENTS, found, strict=True):
        assumed = [[[list(token) for token in still.tokens], still.jumps] for still in stills(seen, t)]
        assert rows == assumed


def lines(texts: list[str], room: int, widths: list[int] | None = None) -> list[str]:
    widths = widths or [len(text) for text in texts]
    starts = script(f"hopPlayer.breaks({json.dumps(texts)}, {widths}, {room})")
    return ["".join(texts[a:b]) for a, b in zip(starts, [*starts[1:], None], strict=True)]


def test_lines_break_after_line_ends_and_between_words():
    assert lines([*"one two", "⏎", *"three", " four"], 6) == ["one ", "two⏎", "three", " four"]


def test_a_word_wider_than_a_line_is_broken_where_the_line_ends():
    assert lines(list("abcdefghij"), 4) == ["abcd", "efgh", "ij"]
    assert lines([], 4) == [""]


def test_lines_leave_room_for_the_widest_token_that_ever_stands_there():
    assert lines(["a", " b", " c"], 8) == ["a b c"]
    assert lines(["a", " b", " c"], 8, [4, 4, 2]) == ["a b", " c"]


def test_the_widest_token_is_found_among_all_that_a_position_holds():
    seen = {
        "glow": 0.1,
        "times": [0.2, 0.5],
        "texts": ["a", "long", "é世"],
        "sequences": [
            {"source": [0, MASKED, 2], "prompt": [], "hops": [0, 0, 1, 1, 0, 0, 1, 1, 1], "direction": "ltr"}
        ],
    }
    assert script(f"hopPlayer.widths({json.dumps(seen)}, {json.dumps(seen['sequences'][0])})") == [4, 4, 3]


def _symbol(token: int) -> str:
    return "␃" if token == LETTERS.end else {"\n": "⏎"}.get(LETTERS.decode([token]), LETTERS.decode([token]))
