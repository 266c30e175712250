"""The animation: frames in Python and in the script of the page equal the states of the generation."""

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
from hopflow.report.animation import FINAL, MASKED, MAX_BYTES, MOVED, PROMPT, SOURCE, animation_data, frames_at
from hopflow.report.blocks import AnimationBlock
from hopflow.report.page import render_block

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
def test_a_frame_shows_the_tokens_of_its_time(name, t):
    out = drawn(SOURCES[name])
    found, assumed = frames_at(animation_data(out, LETTERS, LETTERS.size), t), out.at(t)
    assert len(found) == 3
    for row, still in zip(assumed.tolist(), found, strict=True):
        for token, (text, _) in zip(row, still.tokens, strict=True):
            assert text == ("░" if token >= LETTERS.size else _symbol(token))


@pytest.mark.parametrize("t", MOMENTS)
def test_a_frame_counts_the_hops_before_its_time(t):
    out = drawn(SOURCES["uniform"])
    for row, still in enumerate(frames_at(animation_data(out, LETTERS, LETTERS.size), t)):
        assert still.jumps == int(((out.hops.row == row) & (out.hops.t < t)).sum())


def test_tokens_are_source_until_they_move_and_final_after_their_last_hop():
    out = drawn(SOURCES["uniform"], n=1)
    seen = animation_data(out, LETTERS, LETTERS.size)
    last = torch.full((20,), -1.0).double().scatter_reduce(0, out.hops.position, out.hops.t, "amax")
    for t in (0.0, 0.3, 0.6):
        for position, (_, state) in enumerate(frames_at(seen, t)[0].tokens):
            before = ((out.hops.position == position) & (out.hops.t < t)).any()
            if not before:
                assert state == SOURCE
            elif float(last[position]) >= t:
                assert state == MOVED
            elif float(last[position]) < t - seen["glow"]:
                assert state == FINAL
    assert {state for _, state in frames_at(seen, 1.0)[0].tokens} == {FINAL}
    assert {state for _, state in frames_at(seen, 0.0)[0].tokens} == {SOURCE}


def test_a_hop_is_highlighted_for_a_short_time():
    seen = {
        "glow": 0.1,
        "times": [0.5],
        "texts": ["a", "b"],
        "sequences": [{"source": [0], "prompt": [], "hops": [0, 0, 1], "direction": "ltr"}],
    }
    assert [frames_at(seen, t)[0].tokens[0] for t in (0.5, 0.55, 0.7)] == [("a", SOURCE), ("b", MOVED), ("b", FINAL)]


def test_prompt_tokens_have_their_own_state_and_never_hop():
    prompt = torch.full((1, 6), hf.HOLE)
    prompt[0, 1] = LETTERS.encode("a")[0]
    flow = hf.Flow(SOURCES["mask"])
    out = hf.infill(random_network(LETTERS.size), flow, prompt, steps=4, trajectory=True, seed=0)
    for t in MOMENTS:
        assert frames_at(animation_data(out, LETTERS, LETTERS.size), t)[0].tokens[1] == ("a", PROMPT)


def test_a_mask_is_as_wide_as_its_final_token():
    seen = {
        "glow": 0.1,
        "times": [0.5],
        "texts": ["word", "!"],
        "sequences": [{"source": [MASKED, MASKED], "prompt": [], "hops": [0, 0, 0, 0, 1, 1], "direction": "ltr"}],
    }
    assert frames_at(seen, 0.2)[0].text == "░░░░░"


def test_sequences_without_hops_can_be_animated():
    source = SOURCES["uniform"]

    def stay(xt: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return 1e4 * torch.nn.functional.one_hot(xt, LETTERS.size).float()

    out = hf.generate(stay, hf.Flow(source), n=2, length=5, steps=4, trajectory=True)
    seen = animation_data(out, LETTERS, LETTERS.size)
    assert [still.jumps for still in frames_at(seen, 1.0)] == [0, 0]
    assert seen["times"] == []
    assert frames_at(seen, 0.0)[0].text == frames_at(seen, 1.0)[0].text
    assert "<ol" in render_block(AnimationBlock("p", seen))


def test_an_animation_without_sequences_is_empty():
    empty = {"glow": 0.1, "times": [], "texts": [], "sequences": []}
    assert frames_at(empty, 0.5) == []
    assert '<span class="hop-total">0</span>' in render_block(AnimationBlock("p", empty))


def test_an_animation_drops_sequences_to_stay_below_its_size_limit(monkeypatch):
    out = drawn(SOURCES["uniform"], n=6, length=200, steps=64)
    whole = animation_data(out, LETTERS, LETTERS.size)
    assert len(whole["sequences"]) == 4
    size = len(json.dumps(whole, separators=(",", ":")))
    assert size < MAX_BYTES
    monkeypatch.setattr("hopflow.report.animation.MAX_BYTES", size // 2)
    fewer = animation_data(out, LETTERS, LETTERS.size)
    assert 1 <= len(fewer["sequences"]) < 4
    assert fewer["sequences"] == whole["sequences"][: len(fewer["sequences"])]


def test_four_sequences_of_1024_tokens_fit_into_the_size_limit():
    out = drawn(hf.Uniform(hf.Vocab(256)), n=4, length=1024, steps=32)
    assert len(json.dumps(animation_data(out, Bytes(), 256), separators=(",", ":"))) < MAX_BYTES


def test_bytes_that_are_not_valid_text_are_shown_as_replacement_characters():
    out = drawn(hf.Uniform(hf.Vocab(256)), n=2, length=40)
    (one, two) = frames_at(animation_data(out, Bytes(), 256), 0.5)
    assert "\ufffd" in one.text + two.text
    assert all(text for text, _ in one.tokens)


def test_token_texts_cannot_become_markup_or_control_characters():
    evil = Characters("".join(sorted(set('<script>alert("1")</script>&\x1b[31m\u202e\n'))))
    out = drawn(hf.Uniform(hf.Vocab(evil.size)), n=2, length=60)
    shown = render_block(AnimationBlock('"><script>', animation_data(out, evil, evil.size)))
    inside = shown.split('<script type="application/json">')[1].split("</script>")[0]
    assert "<" not in inside
    assert "&" not in inside
    assert json.loads(inside)["sequences"]
    assert shown.count("<script") == 1
    assert "\x1b" not in shown
    assert "\u202e" not in shown


def test_the_writing_direction_is_that_of_the_final_text():
    out = drawn(SOURCES["uniform"], n=1, length=4)
    hebrew = replace(out, tokens=torch.tensor([LETTERS.encode("> אב")]))
    latin = replace(out, tokens=torch.tensor([LETTERS.encode("<aאב")]))
    assert animation_data(hebrew, LETTERS, LETTERS.size)["sequences"][0]["direction"] == "rtl"
    assert animation_data(latin, LETTERS, LETTERS.size)["sequences"][0]["direction"] == "ltr"
    assert 'dir="rtl"' in render_block(AnimationBlock("p", animation_data(hebrew, LETTERS, LETTERS.size)))


# the script


def script(expression: str) -> object:
    """What an expression over the page's script gives, without a page."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node to run the page's script in")
    source = files(report).joinpath("animation.js").read_text(encoding="utf-8")
    program = f"{source}\nprocess.stdout.write(JSON.stringify({expression}));"
    done = subprocess.run([node, "-"], input=program, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", SOURCES)
def test_the_script_and_python_compute_the_same_frames(name):
    seen = animation_data(drawn(SOURCES[name]), LETTERS, LETTERS.size)
    shown = """(() => { const animation = %s; return %s.map((t) => animation.sequences.map((sequence) => {
        const now = hopAnimation.stateAt(animation, sequence, t), end = hopAnimation.final(sequence);
        return [now.tokens.map((token, i) => [hopAnimation.shown(animation, token, end[i]), now.states[i]]), now.jumps];
    })); })()"""
    found = script(shown % (json.dumps(seen), json.dumps(MOMENTS)))
    for t, rows in zip(MOMENTS, found, strict=True):
        assumed = [[[list(token) for token in still.tokens], still.jumps] for still in frames_at(seen, t)]
        assert rows == assumed


def lines(texts: list[str], room: int, widths: list[int] | None = None) -> list[str]:
    widths = widths or [len(text) for text in texts]
    starts = script(f"hopAnimation.breaks({json.dumps(texts)}, {widths}, {room})")
    return ["".join(texts[a:b]) for a, b in zip(starts, [*starts[1:], None], strict=True)]


def test_lines_break_after_line_ends_and_between_words():
    assert lines([*"one two", "⏎", *"three", " four"], 6) == ["one ", "two⏎", "three", " four"]


def test_a_word_wider_than_a_line_is_broken_where_the_line_ends():
    assert lines(list("abcdefghij"), 4) == ["abcd", "efgh", "ij"]
    assert lines([], 4) == [""]


def test_lines_have_room_for_the_widest_token_of_each_position():
    assert lines(["a", " b", " c"], 8) == ["a b c"]
    assert lines(["a", " b", " c"], 8, [4, 4, 2]) == ["a b", " c"]


def test_the_width_of_a_position_is_that_of_its_widest_token_at_any_time():
    seen = {
        "glow": 0.1,
        "times": [0.2, 0.5],
        "texts": ["a", "long", "é世"],
        "sequences": [
            {"source": [0, MASKED, 2], "prompt": [], "hops": [0, 0, 1, 1, 0, 0, 1, 1, 1], "direction": "ltr"}
        ],
    }
    assert script(f"hopAnimation.widths({json.dumps(seen)}, {json.dumps(seen['sequences'][0])})") == [4, 4, 3]


def _symbol(token: int) -> str:
    return "␃" if token == LETTERS.end else {"\n": "⏎"}.get(LETTERS.decode([token]), LETTERS.decode([token]))
