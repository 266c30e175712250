"""--watch: the replay of hops on a terminal, and stills elsewhere."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from saved_networks import LENGTH, rows
from terminals import terminal

import hopflow as hf
from hopflow.cli import draw_samples
from hopflow.cli import watch as watching
from hopflow.cli.trained_network import TrainedNetwork
from hopflow.cli.watch import HOPPING, NOISE, PROMPT, SETTLED, HopReplay, watch
from hopflow.data.tokenizers import END
from hopflow.system.safe_text import harmless


@pytest.fixture(autouse=True)
def in_the_folder_of_networks(saved_networks, monkeypatch):
    monkeypatch.chdir(saved_networks)


def test_watch_in_a_pipe_prints_a_few_frames(hopflow, tmp_path):
    file = tmp_path / "a.jsonl"
    result = hopflow("sample", "masks", "n=6", "--watch", "--out", str(file))
    assert (result.code, result.out) == (0, "")
    times = [line for line in result.err.splitlines() if line.startswith("t = ")]
    assert [line.partition(",")[0] for line in times] == [f"t = {t}" for t in ("0.00", "0.25", "0.50", "0.75", "1.00")]
    assert (times[0], times[-1]) == ("t = 0.00, 0 hops", f"t = 1.00, {4 * LENGTH} hops")
    first, *_, last = (part.splitlines()[1:5] for part in result.err.split("t = ")[1:])
    assert [line.split()[1] for line in first] == ["░" * LENGTH] * 4
    texts = [harmless(row["text"]).replace(END, "␃") for row in rows(file)]
    assert any("␃" in text for text in texts[:4])
    assert [line[5:].ljust(LENGTH) for line in last] == texts[:4]


@dataclass(frozen=True)
class Script:
    """A tokenizer of six symbols, of which one rings and one clears the screen."""

    symbols: tuple[str, ...] = ("a", "b", "c", "\n", "\x1b", "\x07")
    end = None

    def decode(self, ids: list[int]) -> str:
        return "".join(self.symbols[i] for i in ids)


@pytest.fixture
def generation() -> hf.Generation:
    """Two short sequences: position 0 is a prompt, 1 hops twice, 2 once, 3 never; the second row is shorter."""
    out = hf.Generation(
        tokens=torch.tensor([[0, 1, 3, 2], [4, 5, -1, -1]]),
        x0=torch.tensor([[0, 6, 6, 2], [4, 6, -1, -1]]),
        fixed=torch.tensor([[True, False, False, False], [True, False, False, False]]),
        lengths=torch.tensor([4, 2]),
        calls=torch.tensor([3, 1]),
        redraws=torch.tensor([[0, 2, 1, 1], [0, 1, 0, 0]]),
        changes=torch.tensor([[0, 2, 1, 0], [0, 1, 0, 0]]),
        sampler=hf.Euler(4),
        eta=0.0,
        filter=hf.Filter(),
        draw="categorical",
        hops=hf.Hops(
            row=torch.tensor([0, 1, 0, 0]),
            t=torch.tensor([0.0, 0.25, 0.5, 0.75]),
            position=torch.tensor([1, 1, 2, 1]),
            before=torch.tensor([6, 6, 6, 2]),
            after=torch.tensor([2, 5, 3, 1]),
        ),
    )
    assert torch.equal(out.at(1.0), out.tokens)
    return out


def test_a_replay_shows_noise_then_hops_then_settled_tokens(generation, monkeypatch):
    monkeypatch.setattr(watching, "GLOW", 1)
    frames = list(HopReplay(generation, Script(), data=6).frames((0.0, 0.25, 0.5, 0.75, 1.0)))
    texts = [["".join(text for text, _ in row) for row in frame.rows] for frame in frames]
    assert texts == [["a░░c", "␛░"], ["ac░c", "␛░"], ["ac░c", "␛␇"], ["ac⏎c", "␛␇"], ["ab⏎c", "␛␇"]]
    assert [frame.jumps for frame in frames] == [[0, 0], [1, 0], [1, 1], [2, 1], [3, 1]]
    styles = [[style for _, style in frame.rows[0]] for frame in frames]
    assert styles == [
        [PROMPT, NOISE, NOISE, NOISE],
        [PROMPT, HOPPING, NOISE, NOISE],
        [PROMPT, HOPPING, NOISE, NOISE],  # it will hop again
        [PROMPT, HOPPING, HOPPING, NOISE],
        [PROMPT, SETTLED, SETTLED, SETTLED],
    ]
    assert [frame.rows[1][1][1] for frame in frames] == [NOISE, NOISE, HOPPING, SETTLED, SETTLED]


def test_a_hop_is_highlighted_for_a_few_frames(generation):
    times = [0.25 + i / 100 for i in range(8)]
    styles = [frame.rows[1][1][1] for frame in HopReplay(generation, Script(), data=6).frames(times)]
    assert styles == [NOISE, *[HOPPING] * watching.GLOW, *[SETTLED] * 3]


def plain(said: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", said)


def test_a_replay_on_a_terminal_leaves_its_last_frame(generation):
    screen, slept = terminal(), []
    assert watch(HopReplay(generation, Script(), data=6), screen, slept.append) == 2
    assert sum(slept) == pytest.approx(6, abs=1)
    said = screen.file.getvalue()
    last = said[said.rindex("t \x1b[1m1.00") :]
    assert "4 hops" in plain(last)
    assert "4 Euler steps, η = 0" in plain(last)
    assert "ab⏎c" in plain(last)
    assert "noise  hopping  settled  prompt" in plain(last)
    assert "\x1b[4;34ma" in last  # the prompt is blue
    assert "\x1b[32mb⏎c" in last  # and what was drawn green
    assert "\x07" not in said


def test_a_replay_on_a_narrow_terminal_does_not_wrap(generation):
    screen = terminal(width=36)
    assert watch(HopReplay(generation, Script(), data=6), screen, lambda _: None) == 2
    lines = plain(screen.file.getvalue()).splitlines()
    assert lines[-8].startswith("t 1.00")
    assert lines[-8].endswith("4 hops  4 Euler…")
    assert max(map(len, lines)) <= 36


def test_the_states_of_tokens_differ_without_colours(generation):
    screen = terminal(NO_COLOR="1")
    watch(HopReplay(generation, Script(), data=6), screen, lambda _: None)
    said = screen.file.getvalue()
    legend = said[said.rindex("noise") - 8 :]
    assert "\x1b[2mnoise\x1b[0m  \x1b[1mhopping\x1b[0m  settled  \x1b[4mprompt\x1b[0m" in legend
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", said)


def test_a_replay_on_a_dumb_terminal_prints_frames(generation):
    screen = terminal(TERM="dumb")
    assert watch(HopReplay(generation, Script(), data=6), screen, lambda _: None) == 2
    assert plain(screen.file.getvalue()).startswith("t = 0.00, 0 hops\n  1  a░░c\n")


def test_a_replay_leaves_out_sequences_that_do_not_fit(generation):
    assert watch(HopReplay(generation, Script(), data=6), terminal(height=8), lambda _: None) == 1
    assert watch(HopReplay(generation, Script(), data=6), terminal(height=5), lambda _: None) == 0


def test_ctrl_c_ends_the_replay_and_loses_no_text(generation):
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    assert watch(HopReplay(generation, Script(), data=6), terminal(), interrupt) == 0


def test_lines_of_a_replay_break_at_the_width():
    row = [(text, SETTLED) for text in ("ab", "cd", "世", "e", "fgh")]
    assert [[text for text, _ in line] for line in watching._lines(row, 4)] == [["ab", "cd"], ["世", "e"], ["fgh"]]


def test_masks_are_as_wide_as_typical_tokens(generation):
    words = Script(("Alas", "poor", "Yorick", "I", "knew", "him"))
    (first,) = HopReplay(generation, words, data=6).frames([0.0])
    assert first.rows[0][1] == ("░░░░", NOISE)


def network_of_script() -> TrainedNetwork:
    flow = hf.Flow(hf.Mask(hf.Vocab(6, 1)))
    return TrainedNetwork(Path(), torch.nn.Identity(), flow, Script(), None, None, torch.device("cpu"))


@pytest.mark.parametrize(
    ("height", "shown"),
    [(40, True), (8, False)],  # both sequences; one of them
)
def test_texts_that_a_replay_has_left_on_the_terminal_are_not_printed_again(generation, monkeypatch, height, shown):
    screen = terminal(height=height)
    monkeypatch.setattr(draw_samples, "console", lambda stderr: screen)
    monkeypatch.setattr(draw_samples, "watch", lambda replay, screen: watch(replay, screen, lambda _: None))
    assert draw_samples.replay(generation, network_of_script()) is shown


def test_after_a_replay_that_is_not_on_a_terminal_texts_are_printed(generation, monkeypatch):
    screen = terminal(TERM="dumb")
    monkeypatch.setattr(draw_samples, "console", lambda stderr: screen)
    assert draw_samples.replay(generation, network_of_script()) is False
