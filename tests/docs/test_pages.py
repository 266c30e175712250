"""Every page does what it says: its Python runs in order, its commands run as typed, in a small size (tests/pages.py).

A new page is found by itself. `CHECKS` looks closer at what some pages leave behind.
"""

import gc
import json
import os
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from hub_server import HubServer, use
from pages import FEW, PAGES, ROOT, SMALL, Block, blocks, read, shortened

from hopflow import cli
from hopflow.cli.command_settings import InfillSettings
from hopflow.costs import Hamming

GRANTED = {
    "docs/evaluation.md": """
        hopflow train my_book.txt
        hopflow train my_book.txt model=causal out=runs/ar
        hopflow train my_book.txt source=bag_of_words coupling=exact out=runs/ot
        hopflow train my_book.txt source=bag_of_words coupling=independent out=runs/plain
    """
}
"""Runs that a page takes for granted."""
REPORTED = ("docs/report.md",)
"""Pages whose commands end with a report, as they do for a user; elsewhere that would only take time."""
PUSHED = ("docs/hub.md",)
"""Pages that talk to the hub: to one on loopback."""
FILES = ("toml", "text")
"""Blocks that are files, whose first line is their name: `# mine.toml`."""


@dataclass
class Followed:
    """What a page has left: the names of its Python, and what each block of it printed."""

    names: dict = field(default_factory=dict)
    printed: list[str] = field(default_factory=list)
    made: list[dict] = field(default_factory=list)
    """The names as they were after each Python block."""


@pytest.fixture
def run_here(monkeypatch, capsys):
    """A command in this process, which need not import torch again: its exit code and what it said."""

    def run(words: list[str]) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", words)
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # which the command line replaces
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code, "".join(capsys.readouterr())

    return run


@pytest.fixture
def book(tmp_path, monkeypatch):
    """A folder to work in, with a text, test sets and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOPFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOPFLOW_DATA", str(tmp_path / "sets"))
    monkeypatch.setenv("HOPFLOW_REPORT", "off")
    text = "".join(f"{n} green bottles hanging on the wall, and if {n} of them should fall? " for n in range(400))
    (tmp_path / "my_book.txt").write_text(text)
    for name in ("lambada", "wikitext-2", "ptb"):
        (tmp_path / "sets" / name).mkdir(parents=True)
        (tmp_path / "sets" / name / "test.txt").write_text("on the wall hang 10 green bottles, " * 20)


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer() as server:
        yield server


@pytest.fixture
def follow(book, run_here, hub, monkeypatch, capsys) -> Iterator[Callable[[str], Followed]]:
    """Do what a page says from top to bottom."""

    def do(words: list[str]) -> None:
        if words[0] == "hopflow":
            code, said = run_here(shortened(words))
            assert code == 0, f"{shlex.join(words)}\n{said}"
        else:
            assert exists(words), f"nothing is known of {shlex.join(words)!r}"

    def follow(page: str) -> Followed:
        monkeypatch.setenv("HOPFLOW_REPORT", "on" if page in REPORTED else "off")
        if page in PUSHED:
            use(hub, monkeypatch, Path.cwd())
        followed = Followed({"__name__": page})
        run = [block for block in blocks(read(page)) if not block.reason]
        for line in GRANTED.get(page, "").strip().splitlines():
            do(shlex.split(line))
        for block in run:
            if block.language in FILES and block.code.startswith("# "):
                name, _, content = block.code.removeprefix("# ").partition("\n")
                Path(name).write_text(content)
        for block in run:
            if block.language == "python":
                capsys.readouterr()
                exec(compile(block.code, page, "exec"), followed.names)
                followed.printed.append(capsys.readouterr().out)
                followed.made.append(dict(followed.names))
            for words in block.commands if block.language == "console" else []:
                do(words)
        return followed

    yield follow
    gc.collect()  # a part that a page defines is known by name as long as its class exists


def exists(words: list[str]) -> bool:
    """Whether a command that is not ours leads somewhere: `make TARGET`, a script of the repository."""
    if words[0] == "make":
        return re.search(rf"^{words[1]}:", read("Makefile"), re.MULTILINE) is not None
    return (words[0] == "python" and (ROOT / words[1]).is_file()) or os.access(ROOT / words[0], os.X_OK)


# what some pages leave behind


def the_readme_trains_samples_and_defines_a_source(readme: Followed) -> None:
    assert Path("runs/my_book/checkpoints/step-000000002").is_dir()
    assert Path("runs/my_book/eval.json").is_file()
    assert readme.names["run"].step == 20
    assert "ppl" in readme.printed[0]
    hf = readme.names["hf"]
    source = readme.names["Ascending"](hf.Vocab(3))
    assert torch.allclose(source.probs(torch.tensor([0, 1, 2])), torch.tensor([1 / 6, 2 / 6, 3 / 6]))


def the_training_guide_makes_its_runs(guide: Followed) -> None:
    assert [row["step"] for row in guide.names["seen"]] == [0, 9, 19, 29, 39]
    assert Path("runs/my_book/checkpoints/step-000000008").is_dir()
    assert {f.name for f in Path("runs").iterdir()} >= {"words", "mine", "mine-1", "small", "own", "later", "my_book-2"}


def the_sampling_guide_draws_and_fills(guide: Followed) -> None:
    out, filled, saved = (guide.names[name] for name in ("out", "filled", "saved"))
    assert torch.equal(out.path_cost(Hamming()), out.jumps.double())
    ten, on_the = filled.text(saved.tokenizer)
    assert ten.startswith("ten")
    assert on_the.startswith("on the")  # the blank before a hole may be part of what is drawn
    assert len(Path("samples.jsonl").read_text().splitlines()) == 64
    assert [json.loads(line)["prompt"] for line in Path("filled.jsonl").read_text().splitlines()] == [
        "on the [MASK:4]",
        "ten [MASK:5] fall",
    ]


def the_evaluation_guide_measures_judges_and_counts(guide: Followed) -> None:
    measured, judged, counted = guide.made
    (row,) = measured["rows"]
    assert (row.quantity, row.run, row.is_bound) == ("b1", "memory", True)
    lines = guide.printed[0].splitlines()
    assert sum(line.startswith("tale.txt: b0 ") and line.endswith("(n=16, a bound)") for line in lines) == 1
    assert sum(line.startswith("samples: gen_ppl ") for line in lines) == 2

    nats = judged["found"].score.nats / judged["found"].score.tokens
    assert nats[0] < nats[2] / 1.5  # words in order, and letters in none
    assert "gen_ppl_mean" in guide.printed[1]

    jumps, costs = counted["found"], counted["costs"]
    assert abs(jumps.per_sequence.value - 32 / 3) < 4 * jumps.per_sequence.stderr  # 2/3 of 16: it never heard of OT
    assert jumps.excess.value > 4 * jumps.excess.stderr
    squared, hamming = (costs[kind].dynamic.value for kind in (counted["hf"].SquaredEmbedding, Hamming))
    assert squared == 2 * hamming  # ‖e_a - e_b‖² of unit vectors
    assert "excess_jumps" in guide.printed[2]


def a_module_of_ones_own_learns(guide: Followed) -> None:
    # always the same token would cost log 4 at each of the 8 positions
    assert float(guide.names["loss"].detach()) < 8 * 1.386 * 0.7
    assert Path("my-flow/model.safetensors").is_file()


def the_guide_to_reports_writes_them(guide: Followed) -> None:
    assert guide.names["page"] == Path("side_by_side/report.html")
    assert "Side by side" not in guide.names["page"].read_text()  # only one of them was evaluated
    assert "Sample quality" in Path("runs/my_book/report.html").read_text()


def samples_have_the_law_of_their_label(page: Followed) -> None:
    """Motifs and token frequencies of each label, within four standard errors of the samples."""
    rows, labels, tokens, wanted = (page.names[name] for name in ("rows", "labels", "out", "wanted"))
    for label in (0, 1):
        drawn, real = tokens.tokens[wanted == label], rows[labels == label]
        pairs = [(drawn == token, real == token) for token in range(4)]
        pairs.append(tuple((x[:, 6:10] == page.names["motif"]).all(1) for x in (drawn, real)))
        for found, known in pairs:
            expected = known.double().mean(0)
            error = (expected * (1 - expected) / len(drawn)).sqrt().clamp(min=1 / len(drawn))
            assert ((found.double().mean(0) - expected).abs() < 4 * error).all()
    assert page.names["saved"].label_names == ("background", "motif")
    kept = json.loads(Path("runs/dna/eval.json").read_text())["rows"]
    assert any(row["set"] == "held-out, label motif" for row in kept)


def the_molecules_become_valid_and_the_pictures_have_bars(page: Followed) -> None:
    untrained, trained = (page.names["found"][steps]["smiles_validity"] for steps in (1, 300))
    assert trained.value - untrained.value > 4 * (trained.stderr**2 + untrained.stderr**2) ** 0.5
    assert page.names["found"][300]["carbons"].n == 100
    assert page.names["share"] > 0.3  # noise has a bar in 1 of 10,000 cases
    entropy = torch.log(torch.tensor(24.0))
    assert entropy < page.names["bound"].nats + 4 * page.names["bound"].stderr < 3 * entropy
    assert Path("runs/pictures/eval.json").is_file()


CHECKS: dict[str, Callable[[Followed], None]] = {
    "README.md": the_readme_trains_samples_and_defines_a_source,
    "docs/training.md": the_training_guide_makes_its_runs,
    "docs/sampling.md": the_sampling_guide_draws_and_fills,
    "docs/evaluation.md": the_evaluation_guide_measures_judges_and_counts,
    "docs/report.md": the_guide_to_reports_writes_them,
    "docs/models.md": a_module_of_ones_own_learns,
    "docs/labels.md": samples_have_the_law_of_their_label,
    "docs/molecules.md": the_molecules_become_valid_and_the_pictures_have_bars,
}


ELSEWHERE = ("docs/extending.md",)
"""Pages with a test of their own: classes of this one would stay known to the other tests of this process."""


SLOW = ("docs/labels.md", "docs/molecules.md")
"""Pages that train for half a minute."""
RUN = [page for page in PAGES if any(blocks(read(page))) and page not in ELSEWHERE]


@pytest.mark.parametrize("page", [pytest.param(p, marks=pytest.mark.slow if p in SLOW else ()) for p in RUN])
def test_a_page_does_what_it_says(page, follow):
    followed = follow(page)
    if page in CHECKS:
        CHECKS[page](followed)


# nothing escapes


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is(page):
    text = read(page)
    assert text.count("\n```") == 2 * len(list(blocks(text))), "a fence that these tests do not see"
    for block in blocks(text):
        assert block.language in ("python", "console", *FILES, ""), f"nobody runs {block.language!r}:\n{block.code}"
        if block.language == "console" and not block.reason:
            assert block.commands, f"a console block without a line `$ command`:\n{block.code}"
        if not block.language and not block.reason:  # what was printed
            assert not re.search(r"^(\$ |hopflow \w|import |from \w+ import )", block.code, re.MULTILINE), block.code


def test_the_readme_is_short_and_its_lines_fit_a_screen():
    lines = read("README.md").splitlines()
    assert len(lines) <= 110
    assert [line for line in lines if len(line) > 135] == []


def test_only_a_handful_of_blocks_is_not_run():
    reasons = [block.reason for page in PAGES for block in blocks(read(page)) if block.reason]
    elsewhere = [re.search(r"(tests/\S+\.py) runs it$", reason) for reason in reasons]
    assert all((ROOT / found[1]).is_file() for found in elsewhere if found)
    nowhere = [reason for reason, found in zip(reasons, elsewhere, strict=True) if not found]
    assert len(nowhere) <= 5, nowhere


def test_the_sampling_guide_names_every_setting_and_field(book, run_here):

    text = read("docs/sampling.md")
    assert [key for key in InfillSettings.model_fields if not re.search(rf"`?{key}(=|`|\b)", text)] == []
    assert run_here(shortened(["hopflow", "train", "my_book.txt"]))[0] == 0
    words = ["hopflow", "infill", "runs/my_book", "a[MASK]", "guidance=1", "--out", "a.jsonl"]
    assert run_here(words)[0] == 0
    (row,) = (json.loads(line) for line in Path("a.jsonl").read_text().splitlines())
    assert [name for name in row if name != "index" and f"`{name}`" not in text] == []


def test_the_run_folder_of_the_guide_is_the_one_that_is_written(book, run_here):
    table = read("docs/training.md").partition("## The run folder")[2].partition("\n\nAn evaluation")[0]
    assert run_here(shortened(["hopflow", "train", "my_book.txt"]))[0] == 0
    written = {f.name for f in Path("runs/my_book").iterdir()} - {"checkpoints", "tensorboard"}
    assert written == set(re.findall(r"`([\w.]+\.(?:jsonl?|csv)|\.lock)`", table)) - {"config.json", "state.json"}


def test_the_installed_command_trains(book):
    hopflow = Path(sys.executable).with_name("hopflow")
    words = shortened(["hopflow", "train", "my_book.txt"])
    run = subprocess.run([hopflow, *words[1:]], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert run.returncode == 0, run.stderr
    assert "runs/my_book" in run.stdout


@pytest.mark.slow
def test_the_guide_starts_several_processes(book):
    (line,) = [line for line in read("docs/training.md").splitlines() if line.startswith("$ torchrun ")]
    options, _, command = line.removeprefix("$ torchrun ").partition(" -m ")
    started = [sys.executable, "-m", "torch.distributed.run", *options.split(), "-m", *shortened(command.split())]
    run = subprocess.run([*started, "device=cpu"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("nats per token") == 1  # one of them speaks


# how a page is read


def test_blocks_come_with_their_reason():
    text = "```python\na\n```\n\n<!-- not run: too long -->\n```console\n$ b\n```\n\n```\nc\n```\n"
    assert list(blocks(text)) == [
        Block("python", "a\n", ""),
        Block("console", "$ b\n", "too long"),
        Block("", "c\n", ""),
    ]


def test_commands_are_found_and_output_is_left_alone():
    text = "$ make test\n$ hopflow oracle \\\n    seed=1  # note\noutput\n"
    assert Block("console", text, "").commands == [["make", "test"], ["hopflow", "oracle", "seed=1"]]


def test_a_command_that_would_need_a_shell_is_refused():
    with pytest.raises(AssertionError, match="plain commands"):
        _ = Block("console", "$ hopflow oracle | head\n", "").commands


def test_a_command_that_leads_nowhere_is_found():
    assert exists(["make", "lint"])
    assert exists([".ci/run"])
    assert not exists(["make", "coffee"])
    assert not exists(["torchrun", "x"])


def test_training_and_evaluation_are_shortened_and_nothing_else_is():
    small = [f"{key}={value}" for key, value in SMALL.items()]
    few = [f"{key}={value}" for key, value in FEW.items()]
    assert shortened(["hopflow", "train", "a.txt", "lr=1"]) == ["hopflow", "train", "a.txt", "lr=1", "steps=2", *small]
    assert "steps=6" in shortened(["hopflow", "train", "a.txt", "steps=6000", "batch=512"])
    assert "batch=512" not in shortened(["hopflow", "train", "a.txt", "steps=6000", "batch=512"])
    assert shortened(["hopflow", "eval", "r", "steps=8,1024", "n=99"]) == ["hopflow", "eval", "r", "steps=2,4", *few]
    assert shortened(["hopflow", "train", "a.smi", "lr=1"])[:5] == ["hopflow", "train", "a.smi", "lr=1", "steps=2"]
    assert not any(word.startswith("length=") for word in shortened(["hopflow", "train", "a.smi"]))
    assert shortened(["hopflow", "oracle", "seed=1"]) == ["hopflow", "oracle", "seed=1"]
