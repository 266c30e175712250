"""One test for each promise that a change in the code once broke unnoticed."""

import math
import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from texts import Letters
from torch import nn

import hopflow as hf
from hopflow.bounds.estimate import Estimate
from hopflow.cli.build_sampler import PASSED, sampling_options
from hopflow.cli.command_settings import InfillSettings
from hopflow.couplings import Independent
from hopflow.data.tokenizers import Bytes
from hopflow.evaluation.judge import CausalJudge
from hopflow.evaluation.stopping import UNITS, StoppingRule
from hopflow.models import Causal, Size
from hopflow.report.run_data import RunData
from hopflow.report.sections.summary import section
from hopflow.runs import checkpoint
from hopflow.sampling.sampling_run import POOL
from hopflow.system import atomic
from hopflow.training.train import train

SMALL = Size(layers=1, width=16, heads=2)


# -- sampling ----------------------------------------------------------------------------------------------------------


class Labelled(nn.Module):
    """Certain of the token that is its label."""

    def forward(self, xt, t, labels):
        return 50 * nn.functional.one_hot(labels, 5).float()[:, None].expand(*xt.shape, 5)


def test_every_sequence_is_drawn_with_its_own_label_in_later_waves_too():
    n = 3 * POOL + 1  # at one sequence per call: three waves and one of a single sequence
    labels = torch.tensor([random.Random(i).randrange(5) for i in range(n)])
    flow = hf.Flow(hf.Mask(hf.Vocab(5, 1)))
    out = hf.generate(Labelled(), flow, n=n, length=3, steps=2, labels=labels, batch=1)
    assert torch.equal(out.tokens, labels[:, None].expand(n, 3))


# -- the command line --------------------------------------------------------------------------------------------------

CHOSEN = {
    "eta": 0.5,
    "temperature": 0.7,
    "top_k": 3,
    "top_p": 0.9,
    "min_p": 0.2,
    "seed": 5,
    "batch": 7,
    "compile": False,
    "precision": "bf16",
    "guidance": 2.0,
}


@pytest.mark.parametrize("key", CHOSEN)
def test_a_setting_of_sample_and_infill_is_passed_on(key):
    assert sampling_options(InfillSettings(**{key: CHOSEN[key]}))[key] == CHOSEN[key]
    assert key not in sampling_options(InfillSettings())


def test_all_settings_that_are_passed_on_are_tested():
    assert set(PASSED) == set(CHOSEN)


OFFLINE = {
    ("train", "docs"): "hopflow.recipes.build",
    ("eval", "RUN"): "hopflow.evaluation.suite.Suite.run",
    ("data", "fetch", "wikitext2"): "hopflow.data.catalogue.fetch",
    ("data", "prepare", "docs"): "hopflow.data.catalogue.prepare",
    ("demo",): "hopflow.demo.run",
    ("reproduce", "morse"): "hopflow.reproduce.morse.run",
    ("reproduce", "text"): "hopflow.reproduce.text.queue.run",
}


@pytest.mark.parametrize("words", OFFLINE, ids=" ".join)
@pytest.mark.parametrize("offline", [False, True])
def test_offline_is_passed_on_by_every_command_that_has_it(hopflow, tmp_path, monkeypatch, words, offline):
    seen = []

    def instead(*given, **keys):
        seen.append(keys["offline"] if "offline" in keys else given[-1])
        raise ValueError("enough was seen")

    monkeypatch.setattr(OFFLINE[words], instead)
    monkeypatch.chdir(tmp_path)
    hf.save_pretrained(tmp_path / "RUN", Causal(256, SMALL), tokenizer=Bytes(), recipe={"length": 8})
    result = hopflow(*words, *(["--offline"] if offline else []))
    assert (result.code, seen) == (2, [offline]), result.err


# -- evaluation --------------------------------------------------------------------------------------------------------


def test_bits_per_byte_count_bytes_and_not_characters():
    torch.manual_seed(0)
    judge = CausalJudge(Causal(256, SMALL), Bytes(), 64)
    texts = ["naïve Σ", "größer", "a plain one"]
    found, nats = hf.generative_perplexity(texts, judge), float(judge.score(texts).nats.sum())
    size = sum(len(text.encode()) for text in texts)
    assert size > sum(map(len, texts))
    assert found.bits_per_byte.value == pytest.approx(nats / size / math.log(2), rel=1e-6)


@pytest.mark.parametrize("context", [1, 5, 8])
def test_a_judge_reads_windows_of_its_context_and_none_that_is_longer(monkeypatch, context):
    judge, read = CausalJudge(Causal(256, SMALL), Bytes(), context), []
    nats = judge._nats
    monkeypatch.setattr(judge, "_nats", lambda x, lengths: read.extend(lengths.tolist()) or nats(x, lengths))
    judge.score(["x" * 16])
    assert max(read) == context
    assert sum(read) == 16


def estimated(n, stderr, draw_stderr=0.0):
    """Of sequences of 4 tokens: the relative error of the perplexity is a quarter of `stderr`."""
    exact = {"quantity": "b0", "length": 4, "eta": 0.0, "is_bound": True, "calls": 1, "each": (1.0,) * n}
    return Estimate(nats=10.0, stderr=stderr, draw_stderr=draw_stderr, n=n, **exact)


@pytest.mark.parametrize(
    ("estimates", "rows", "complete", "why"),
    [
        ([estimated(UNITS, 0.04)], 50, False, "error"),  # exactly as small as asked for
        ([estimated(UNITS, 0.0401)], 50, False, None),
        ([estimated(UNITS - 1, 0.0)], 50, False, None),  # too few for their spread to be believed
        ([estimated(UNITS - 1, 0.0)], 50, True, "error"),  # but there are no more
        ([estimated(UNITS, 9.0, 0.04)], 50, True, "error"),  # of all sequences only the draws are left open
        ([estimated(UNITS, 9.0, 0.0401)], 50, True, None),
        ([estimated(UNITS, 0.0), estimated(UNITS, 9.0)], 50, False, None),  # every number must be good enough
        ([estimated(UNITS, 9.0)], 99, False, None),
        ([estimated(UNITS, 9.0)], 100, False, "rows"),
    ],
)
def test_the_stopping_rule_at_its_edges(monkeypatch, estimates, rows, complete, why):
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    until = StoppingRule(error=0.01, seconds=60.0, rows=100)
    assert until.reason(estimates, rows, complete, started=941.0) == why
    assert until.reason(estimates, rows, complete, started=940.0) == (why or "seconds")


@dataclass(frozen=True)
class Watched(Independent):
    """Remembers every x0 that it was given."""

    seen: list[torch.Tensor] = field(default_factory=list)

    def pair(self, x0, x1, generator=None, **tables):
        self.seen.append(x0)
        return super().pair(x0, x1, generator, **tables)


@pytest.mark.parametrize("bound", [hf.coupled_bound, hf.coupled_number])
def test_a_coupled_bound_draws_new_source_rows_for_every_minibatch_and_replicate(bound):
    flow, watched = hf.Flow(hf.Uniform(hf.Vocab(5))), Watched()
    x1 = torch.randint(0, 5, (8, 6), generator=torch.Generator().manual_seed(0))
    bound(lambda xt, t: torch.zeros(*xt.shape, 5), flow, x1, watched, minibatch=4, draws=16)
    assert len(watched.seen) == 16  # two minibatches, eight replicates each
    assert len({tuple(x0.flatten().tolist()) for x0 in watched.seen}) == 16


# -- training ----------------------------------------------------------------------------------------------------------


class Padded(Letters):
    """Held-out sequences of which only a part is text."""

    @property
    def test_keep(self):
        return torch.arange(self.length) < torch.tensor([3 + n for n in range(8)])[:, None]


QUIET = {"steps": 1, "batch": 8, "workers": 0, "threads": 1, "eval_rows": 8, "eval_samples": 0}


def test_of_padded_sequences_a_flow_reports_no_bound(tmp_path):
    for corpus in (Letters(), Padded(padded=True)):
        flow = hf.Flow(hf.Mask.fit(corpus.counts))
        run = train(hf.Transformer(flow.vocab, SMALL), flow, corpus, out=tmp_path / type(corpus).__name__, **QUIET)
        assert ("b0_ppl" in run.last) == (type(corpus) is Letters)


def test_of_padded_sequences_a_causal_network_counts_the_tokens_of_the_text(tmp_path):
    corpus, model = Padded(padded=True), Causal(6, SMALL)
    run = train(model, None, corpus, out=tmp_path, **QUIET)
    with torch.no_grad():
        nats = model.eval().nll(corpus.test, corpus.test_keep).double()
    assert run.last["nll"] == pytest.approx(float((nats / corpus.test_keep.sum(1)).mean()), rel=1e-6)
    assert run.last["nll"] == pytest.approx(math.log(6), rel=0.1)  # after one step still that of all tokens alike


@pytest.mark.parametrize(("count", "tenth"), [(1, 1), (19, 1), (20, 2), (45, 4)])
def test_the_loss_of_a_report_is_the_mean_of_the_last_tenth(count, tenth):
    losses = [random.Random(i).random() for i in range(count)]
    rows = [{"step": i, "loss": loss} for i, loss in enumerate(losses)]
    table = section([RunData(Path("run"), "run", metrics=rows)]).blocks[1]
    (said,) = [cells[1] for cells in table.rows if cells[0].startswith("training loss of the last batches")]
    assert float(said.split()[0].replace("*", "")) == pytest.approx(sum(losses[-tenth:]) / tenth, rel=0.1)
    assert said.endswith(f"(n = {tenth})")


@pytest.fixture
def synced(monkeypatch):
    """The paths that were flushed to the disk, in order, and the renames between them."""
    done, fsync, rename, replace = [], os.fsync, os.rename, os.replace

    def flushed(handle):
        done.append(Path(os.readlink(f"/proc/self/fd/{handle}")))  # noqa: PTH115
        fsync(handle)

    def renamed(by):
        return lambda old, new, **keys: (done.append("renamed"), by(old, new, **keys))[1]

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "rename", renamed(rename))
    monkeypatch.setattr(os, "replace", renamed(replace))
    return done


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="paths of open files are read from /proc")
def test_a_file_is_flushed_before_it_is_renamed_and_its_folder_afterwards(tmp_path, synced):
    atomic.write(tmp_path / "file", b"content")
    content, renamed, folder = synced
    assert (content.parent, renamed, folder) == (tmp_path, "renamed", tmp_path)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="paths of open files are read from /proc")
def test_a_checkpoint_is_flushed_file_by_file_then_its_folder_then_the_folder_that_holds_it(tmp_path, synced):
    checkpoint.save(tmp_path, checkpoint.Checkpoint(3, {"model": {"w": torch.ones(2)}, "pairs": {}}))
    *files, folder, renamed, home = synced
    assert {file.name for file in files} == {"model.safetensors", "pairs.safetensors", "state.json"}
    assert {file.parent for file in files} == {folder}
    assert (folder.parent, renamed, home) == (tmp_path, "renamed", tmp_path)
