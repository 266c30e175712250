"""--watch: hops on a terminal while they are drawn, and snapshots elsewhere."""

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from saved_networks import LENGTH, SMALL, rows, shaken
from terminals import terminal

import hopflow as hf
from hopflow.cli import draw_samples
from hopflow.cli import watch as watching
from hopflow.cli.trained_network import TrainedNetwork
from hopflow.cli.watch import CHANGED, HOPPING, NOISE, PROMPT, SETTLED, HopView, stills, watch
from hopflow.data.tokenizers import END
from hopflow.system.safe_text import harmless


@pytest.fixture(autouse=True)
def in_the_folder_of_networks(saved_networks, monkeypatch):
    monkeypatch.chdir(saved_networks)


@pytest.fixture(autouse=True)
def with_the_usual_ctrl_c() -> Iterator[None]:
    """Tests may run in the background, where the shell makes programs ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


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


def frame(row: int, t: float, hop: tuple[int, int, int] | None, tokens: str, final: str, jumps: int = 0) -> hf.Frame:
    """A frame by hand: a hop is (position, before, after); position 0 is a prompt; `final` has an x for final ones."""
    position, before, after = torch.tensor([] if hop is None else [hop], dtype=torch.int64).reshape(-1, 3).T
    ids, are_final = torch.tensor([int(token) for token in tokens]), torch.tensor([each == "x" for each in final])
    fixed, done = torch.arange(len(ids)) == 0, bool(are_final.all())
    return hf.Frame(row, t, position, before, after, ids, fixed, are_final, jumps, jumps, jumps, done)


def frames() -> Iterator[hf.Frame]:
    """Two short sequences: in the first, position 1 hops twice, 2 once, and 3 never; the second is shorter."""
    yield frame(0, 0.0, None, "0662", "x...")
    yield frame(1, 0.0, None, "46", "x.")
    yield frame(0, 0.0, (1, 6, 2), "0262", "x...", 1)
    yield frame(1, 0.25, (1, 6, 5), "45", "xx", 1)
    yield frame(0, 0.5, (2, 6, 3), "0232", "x.x.", 2)
    yield frame(0, 0.75, (1, 2, 1), "0132", "xxxx", 3)


def view(tokenizer=None) -> HopView:
    return HopView(tokenizer or Script(), 6, "4 Euler steps, η = 0", 2)


class Clock:
    """A clock that only sleeping moves on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def watched(screen, made=None, stopped=lambda: False) -> int:
    clock = Clock()
    return watch(frames(), made or view(), screen, stopped, clock.sleep, clock)


def test_tokens_are_noise_then_hop_then_may_change_until_they_are_settled(monkeypatch):
    shown, texts, styles = view(), [], []
    for each in frames():
        shown.take(each)
        first = shown.symbols(shown.sequences[0])
        texts.append("".join(text for text, _ in first))
        styles.append([style for _, style in first])
        for _ in range(watching.GLOW):
            shown.sequences[0].age()
    assert texts == ["a░░c", "a░░c", "ac░c", "ac░c", "ac⏎c", "ab⏎c"]
    noise, hopped = [PROMPT, NOISE, NOISE, NOISE], [PROMPT, HOPPING, NOISE, NOISE]
    later = [PROMPT, CHANGED, NOISE, NOISE], [PROMPT, CHANGED, HOPPING, NOISE], [PROMPT, SETTLED, SETTLED, SETTLED]
    assert styles == [noise, noise, hopped, *later]
    assert [shown.sequences[row].jumps for row in (0, 1)] == [3, 1]
    assert shown.done


def test_a_final_token_is_settled_when_it_is_no_longer_highlighted():
    shown = view()
    for each in list(frames())[:5]:
        shown.take(each)
    sequence = shown.sequences[0]
    seen = []
    for _ in range(watching.GLOW + 1):
        seen.append(sequence.style(2))
        sequence.age()
    assert seen == [HOPPING] * watching.GLOW + [SETTLED]


def plain(said: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", said)


def test_a_terminal_shows_the_hops_slowly_and_keeps_the_last_picture():
    screen, clock = terminal(), Clock()
    assert watch(frames(), view(), screen, lambda: False, clock.sleep, clock) == 2
    assert clock.now == pytest.approx(0.75 * watching.SECONDS, abs=0.01)
    said = screen.file.getvalue()
    last = said[said.rindex("t \x1b[1m1.00") :]
    assert "4 hops" in plain(last)
    assert "4 Euler steps, η = 0" in plain(last)
    assert "ab⏎c" in plain(last)
    assert "noise  hopping  changed  settled  prompt" in plain(last)
    assert "\x1b[4;34ma" in last  # the prompt is blue
    assert "\x1b[32mb⏎c" in last  # and what was drawn green
    assert "\x07" not in said


def test_a_slow_network_is_shown_as_it_draws():
    clock, shown = Clock(), view()

    def slowly() -> Iterator[hf.Frame]:
        for each in frames():
            clock.now += 100
            yield each

    screen = terminal()
    assert watch(slowly(), shown, screen, lambda: False, lambda _: pytest.fail("it waits for nothing"), clock) == 2
    assert plain(screen.file.getvalue()).count("t 0.50") >= 1


def test_frames_after_the_shown_sequences_are_complete_are_left():
    left = frames()
    clock = Clock()
    only_second = HopView(Script(), 6, "", 1)
    watch(
        iter([each for each in left if each.row == 1] + ["not reached"]),
        only_second,
        terminal(),
        sleep=clock.sleep,
        clock=clock,
    )
    assert list(only_second.sequences) == [1]


def test_a_narrow_terminal_does_not_wrap():
    screen = terminal(width=36)
    assert watched(screen) == 2
    lines = plain(screen.file.getvalue()).splitlines()
    assert lines[-8].startswith("t 1.00")
    assert lines[-8].endswith("4 hops  4 Euler…")
    assert max(map(len, lines)) <= 36


def test_the_states_of_tokens_differ_without_colours():
    screen = terminal(NO_COLOR="1")
    watched(screen)
    said = screen.file.getvalue()
    legend = said[said.rindex("noise") - 8 :]
    assert "\x1b[2mnoise\x1b[0m  \x1b[1mhopping\x1b[0m  changed  settled  \x1b[4mprompt\x1b[0m" in legend
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", said)


def test_snapshots_show_the_state_before_the_hops_at_their_time():
    screen = terminal(TERM="dumb")
    stills(frames(), view(), screen)
    parts = [part.splitlines() for part in plain(screen.file.getvalue()).split("t = ")[1:]]
    assert [part[0] for part in parts] == [
        "0.00, 0 hops",
        "0.25, 1 hops",
        "0.50, 2 hops",
        "0.75, 3 hops",
        "1.00, 4 hops",
    ]
    assert [part[1][5:] for part in parts] == ["a░░c", "ac░c", "ac░c", "ac⏎c", "ab⏎c"]
    assert [part[2][5:] for part in parts] == ["␛░", "␛░", "␛␇", "␛␇", "␛␇"]


def test_sequences_that_do_not_fit_are_left_out():
    assert watched(terminal(height=8)) == 1
    assert watched(terminal(height=5)) == 0


def test_ctrl_c_ends_the_display_and_leaves_the_other_frames():
    left, clock = frames(), Clock()
    assert watch(left, view(), terminal(), lambda: clock.now > 2, clock.sleep, clock) == 0
    assert clock.now < 0.5 * watching.SECONDS
    assert [each.t for each in left] == [0.75]


def test_lines_break_at_the_width():
    row = [(text, SETTLED) for text in ("ab", "cd", "世", "e", "fgh")]
    assert [[text for text, _ in line] for line in watching._lines(row, 4)] == [["ab", "cd"], ["世", "e"], ["fgh"]]


def test_masks_are_as_wide_as_typical_tokens():
    shown = view(Script(("Alas", "poor", "Yorick", "I", "knew", "him")))
    shown.take(next(frames()))
    assert shown.symbols(shown.sequences[0])[1] == ("░░░░", NOISE)


# -- drawing and showing at once ---------------------------------------------------------------------------------------


def network_of_script(model=None) -> TrainedNetwork:
    flow = hf.Flow(hf.Mask(hf.Vocab(6, 1)))
    torch.manual_seed(0)
    model = model or shaken(hf.Transformer(flow.vocab, SMALL))
    return TrainedNetwork(Path(), model, flow, Script(), None, None, torch.device("cpu"))


@pytest.fixture
def screen(monkeypatch):
    made = terminal(height=40)
    monkeypatch.setattr(draw_samples, "console", lambda stderr: made)
    monkeypatch.setattr(watching, "SECONDS", 0.2)
    return made


HOLES = [torch.tensor([1, -1, -1, -1]), torch.tensor([-1, -1, 2])]


@pytest.mark.parametrize(("height", "shown"), [(40, True), (8, False)])
@pytest.mark.parametrize("count", [2, 6])
def test_what_is_watched_equals_what_is_drawn_without_watching(screen, height, shown, count):
    screen.height = height
    network, options = network_of_script(), {"steps": 6, "seed": 3}
    found = draw_samples.draw_watched(network, HOLES * (count // 2), options)
    expected = hf.infill(network.model, network.flow, HOLES * (count // 2), **options)
    assert torch.equal(found.out.tokens, expected.tokens)
    assert torch.equal(found.out.changes, expected.changes)
    assert list(found.rows) == list(range(count))
    assert found.shown == (shown and count == 2)


class Interrupting(torch.nn.Module):
    """A network during whose calls Ctrl-C is pressed."""

    def __init__(self, *calls: int) -> None:
        super().__init__()
        self.calls, self.count = calls, 0

    def forward(self, xt, t):
        self.count += 1
        if self.count in self.calls:
            signal.raise_signal(signal.SIGINT)
        return torch.zeros(*xt.shape, 6)


def test_the_first_ctrl_c_ends_the_display_only(screen):
    network, before = network_of_script(Interrupting(2)), signal.getsignal(signal.SIGINT)
    found = draw_samples.draw_watched(network, HOLES, {"steps": 6, "seed": 3})
    assert list(found.rows) == [0, 1]
    assert not found.shown
    assert signal.getsignal(signal.SIGINT) is before


def test_the_second_ctrl_c_keeps_the_sequences_that_are_complete(screen):
    flow, options = network_of_script().flow, {"steps": 6, "seed": 3}
    whole = hf.infill(Interrupting(), flow, HOLES, **options)
    network = network_of_script(Interrupting(1, int(whole.calls[1]) + 1))  # the shorter sequence is drawn first
    found = draw_samples.draw_watched(network, HOLES, options)
    assert list(found.rows) == [1]
    assert torch.equal(found.out.tokens[0, :3], whole.tokens[1, :3])


def test_ctrl_c_before_any_sequence_is_complete_ends_the_command(screen):
    with pytest.raises(KeyboardInterrupt):
        draw_samples.draw_watched(network_of_script(Interrupting(1, 2)), HOLES, {"steps": 6})
