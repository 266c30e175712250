"""Training: what it learns, and that stopping changes nothing."""

import json
import math
import shutil

import pytest
import torch
from texts import Letters
from torch import nn
from unchecked import unchecked

import hopflow as hf
from hopflow.cli.training_log import evaluation_results
from hopflow.models import Causal, Size, Transformer
from hopflow.paths import stratified
from hopflow.runs import checkpoint
from hopflow.runs.metrics import read
from hopflow.runs.ot_batch import Share
from hopflow.runs.rng import stream
from hopflow.training.causal_task import CausalTask
from hopflow.training.settings import Settings
from hopflow.training.tasks import FlowTask
from hopflow.training.train import train
from hopflow.training.trainer import NotFinite, Trainer, learning_rate

QUICK = {"workers": 0, "log_every": 1, "eval_every": 0, "eval_samples": 0, "eval_rows": 0, "warmup": 2, "lr": 1e-3}
SMALL = Size(layers=1, width=32, heads=2)

COUPLINGS = {
    "independent": hf.Independent(),
    "exact": hf.ExactOT(hf.SquaredEmbedding()),
    "sinkhorn": hf.SinkhornOT(hf.Hamming(), eps=0.05),
}


def network(vocab, dropout=0.1):
    torch.manual_seed(0)
    return Transformer(vocab, SMALL, dropout=dropout)


def run(out, steps, corpus=None, source=hf.MultiMask, coupling="independent", **keys):
    corpus = corpus or Letters()
    flow = hf.Flow(source.fit(corpus.counts), coupling=COUPLINGS[coupling])
    return train(network(flow.vocab), flow, corpus, out=out, steps=steps, batch=8, **{**QUICK, **keys})


def losses(folder):
    return [row["loss"] for row in read(folder / "metrics.jsonl")]


def weights(folder):
    return checkpoint.latest(folder / "checkpoints").groups


def state(folder):
    """All that a checkpoint holds, but for how long a coupling took to solve."""
    return {
        group: {name: tensor for name, tensor in tensors.items() if not name.endswith(".numbers")}
        for group, tensors in weights(folder).items()
    }


def equal(one, other):
    return one.keys() == other.keys() and all(
        torch.equal(tensor, other[group][name]) for group in one for name, tensor in one[group].items()
    )


@pytest.mark.parametrize("averaged", [False, True], ids=["plain", "averages"])
@pytest.mark.parametrize("coupling", COUPLINGS)
def test_a_resumed_run_equals_one_that_was_never_stopped_to_the_bit(tmp_path, coupling, averaged):
    keys = {"coupling": coupling, "ot_batch": 16, "save_every": 3}
    keys |= {"weight_ema": 0.99, "ot_ema": 0.999} if averaged else {}
    run(tmp_path / "whole", 14, **keys)
    # 40 rows in batches of 8: an epoch ends after 5 steps; an OT batch lasts 2
    for steps in (1, 4, 5, 9, 10, 14):
        run(tmp_path / "parts", steps, **keys)
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert equal(state(tmp_path / "parts"), state(tmp_path / "whole"))


@pytest.mark.torture
@pytest.mark.parametrize("averaged", [False, True], ids=["plain", "averages"])
@pytest.mark.parametrize("coupling", COUPLINGS)
def test_two_hundred_steps_resumed_many_times_are_equal_to_the_bit(tmp_path, coupling, averaged, tries):
    keys = {"coupling": coupling, "ot_batch": 16, "save_every": 7, "workers": 1}
    keys |= {"weight_ema": 0.99, "ot_ema": 0.999} if averaged else {}
    run(tmp_path / "whole", 200, **keys)
    for steps in (1, 2, 3, 5, 6, 40, 41, 100, 101, 200):
        run(tmp_path / "parts", steps, **keys)
        tries["resumes"] += 1
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert equal(state(tmp_path / "parts"), state(tmp_path / "whole"))


def test_a_run_that_lost_its_last_checkpoint_repeats_the_same_steps(tmp_path):
    run(tmp_path, 6, save_every=2)
    before = losses(tmp_path)
    (tmp_path / "checkpoints" / "step-000000006" / "model.safetensors").write_bytes(b"")
    with pytest.warns(RuntimeWarning, match="loading the previous checkpoint"):
        run(tmp_path, 6, save_every=2)
    assert losses(tmp_path) == before


def test_checkpoints_by_time_change_no_loss_and_a_run_resumes_from_them_to_the_bit(tmp_path):
    keys = {"coupling": "exact", "ot_batch": 16, "save_every": 1000, "keep": 100, "weight_ema": 0.99}
    home = tmp_path / "whole" / "checkpoints"
    run(tmp_path / "whole", 7, save_minutes=0.0, **keys)
    assert checkpoint.steps(home) == [0, 7]
    run(tmp_path / "parts", 7, save_minutes=1e-9, **keys)
    parts = tmp_path / "parts" / "checkpoints"
    assert checkpoint.steps(parts) == list(range(8))
    for step in (4, 5, 6, 7):
        shutil.rmtree(parts / f"step-{step:09d}")
    run(tmp_path / "parts", 7, save_minutes=1e9 / 60, **keys)
    assert checkpoint.steps(parts) == [0, 1, 2, 3, 7]
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert equal(state(tmp_path / "parts"), state(tmp_path / "whole"))


@pytest.mark.parametrize(
    "error", [BrokenPipeError(), OSError(5, "Input/output error"), ValueError("closed file")], ids=str
)
def test_a_logger_whose_stream_is_closed_does_not_end_the_run(tmp_path, caplog, error):
    calls = []

    def fail(*what):
        calls.append(what)
        raise error

    assert run(tmp_path, 3, logger=fail, progress=fail).step == 3
    assert len(calls) == 4 + 3  # steps, with the one before the first, and rows
    assert [message.startswith("reporting failed") for message in caplog.messages] == [True, True]


def test_any_other_error_of_a_logger_is_raised(tmp_path):
    def fail(row):
        raise ValueError("no such column")

    with pytest.raises(ValueError, match="no such column"):
        run(tmp_path, 3, logger=fail)


def test_losses_do_not_depend_on_the_number_of_workers(tmp_path):
    for workers in (0, None):
        run(tmp_path / str(workers), 5, coupling="exact", workers=workers)
    assert losses(tmp_path / "0") == losses(tmp_path / "None")
    assert {row["ot_workers"] for row in read(tmp_path / "None" / "metrics.jsonl")} == {1}


def test_the_first_loss_of_zero_logits_is_log_6_per_masked_letter(tmp_path):
    """A new network's logits are all 0: under masks it says 1/6 for a masked letter and is sure of the others."""
    run(tmp_path, 1, source=hf.Mask, weight_ema=0.0, seed=3)
    corpus, settings = Letters(), Settings(steps=1, batch=8, seed=3)
    flow = hf.Flow(hf.Mask.fit(corpus.counts))
    task = FlowTask(network(flow.vocab), flow, corpus, settings, Share())
    batch = task.batch(0)
    noisy = (batch.sample.xt == flow.vocab.data).double()  # xt holds a mask
    task.close()
    assert torch.equal(batch.open_counts, noisy.sum(1).long())
    noisy = noisy.mean()
    assert losses(tmp_path)[0] == pytest.approx(float(noisy) * math.log(6), rel=1e-5)


def test_a_tiny_network_overfits_one_batch(tmp_path):
    """Two rows, again and again. Rotary positions are relative ones: where it is in a row a network must find out."""
    corpus = Letters(rows=2)
    flow = hf.Flow(hf.MultiMask.fit(corpus.counts))
    torch.manual_seed(0)
    model = Transformer(flow.vocab, Size(layers=2, width=64, heads=2), dropout=0.0)
    train(model, flow, corpus, out=tmp_path, steps=400, batch=8, **{**QUICK, "lr": 2e-3, "warmup": 10})
    found = losses(tmp_path)
    assert sum(found[-40:]) < sum(found[:40]) / 3


class Tied(nn.Module):
    """A network that reads and predicts by one table."""

    def __init__(self, tokens):
        super().__init__()
        self.inner, self.head = nn.Embedding(tokens, 16), nn.Linear(16, tokens, bias=False)
        self.head.weight = self.inner.weight

    def forward(self, xt, t):
        return self.head(self.inner(xt).cumsum(1).tanh())


def test_tied_weights_are_kept_as_one_average_and_resumed_to_the_bit(tmp_path):
    corpus = Letters()
    flow = hf.Flow(hf.Uniform.fit(corpus.counts))

    def trained(out, steps):
        torch.manual_seed(0)
        train(Tied(6), flow, corpus, out=out, steps=steps, batch=8, weight_ema=0.9, **QUICK)
        return weights(out)

    whole, _ = trained(tmp_path / "whole", 4), trained(tmp_path / "parts", 2)
    assert equal(trained(tmp_path / "parts", 4), whole)
    assert torch.equal(whole["model"]["head.weight"], whole["model"]["inner.weight"])
    assert not torch.equal(whole["model"]["head.weight"], whole["train"]["head.weight"])
    found = hf.from_pretrained(tmp_path / "whole", model=Tied(6)).model
    assert torch.equal(found.head.weight, whole["model"]["head.weight"])


@pytest.mark.parametrize("wrong", ["logits", "vocab"])
def test_a_network_that_does_not_fit_its_flow_is_refused_before_a_folder_is_created(tmp_path, wrong):
    corpus = Letters()
    flow = hf.Flow(hf.MultiMask.fit(corpus.counts))
    bad = Tied(flow.vocab.size) if wrong == "logits" else network(hf.Vocab(6, 0))
    with pytest.raises(ValueError, match=r"last dimension of the logits must be 6|use one Vocab for both"):
        train(bad, flow, corpus, out=tmp_path / "run", steps=1, batch=8, **QUICK)
    assert not (tmp_path / "run").exists()
    train(network(flow.vocab), flow, corpus, out=tmp_path / "run", steps=1, batch=8, **QUICK)


def test_a_run_without_checkpoints_does_not_overwrite_its_metrics(tmp_path):
    run(tmp_path, 3)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(ValueError, match="up to step 2 but no checkpoint"):
        run(tmp_path, 3)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("steps", 1.5, "an integer ≥ 1, got 1.5"),
        ("batch", True, "an integer ≥ 1, got True"),
        ("ot_batch", "64", "an integer, got '64'"),
        ("lr", "1e-3", "a number > 0, got '1e-3'"),
    ],
)
def test_a_setting_of_the_wrong_type_is_named_in_the_error(key, value, message):
    settings = Settings()
    object.__setattr__(settings, key, value)  # past the checks of types that the tests put around functions
    with pytest.raises(ValueError, match=f"{key} must be {message}"):
        settings.__post_init__()


def test_a_file_name_in_place_of_a_corpus_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"hf.data.load\('my_book.txt'\)"):
        unchecked(train)(nn.Linear(1, 1), None, "my_book.txt", out=tmp_path)


def test_the_saved_model_has_the_averaged_weights(tmp_path):
    run(tmp_path, 3, weight_ema=0.5)
    groups = weights(tmp_path)
    assert not torch.equal(groups["model"]["head.weight"], groups["train"]["head.weight"])


def test_times_of_a_batch_are_stratified_and_every_sample_is_keyed_by_its_place(tmp_path):
    corpus = Letters()
    run(tmp_path, 3, corpus)
    assert [(start, count) for _, start, count in corpus.asked] == [(0, 8), (8, 8), (16, 8)]


def test_gradient_accumulation_equals_the_gradient_of_the_full_batch(tmp_path):
    for parts in (1, 4):
        corpus = Letters()
        flow = hf.Flow(hf.Mask.fit(corpus.counts))
        train(
            network(flow.vocab, dropout=0.0),
            flow,
            corpus,
            out=tmp_path / str(parts),
            steps=3,
            batch=8,
            accumulate=parts,
            **QUICK,
        )
    assert losses(tmp_path / "1") == pytest.approx(losses(tmp_path / "4"), rel=1e-5)


def test_padding_carries_no_loss(tmp_path):
    corpus = Letters(padded=True)
    run(tmp_path, 2, corpus, source=hf.Mask)
    row = read(tmp_path / "metrics.jsonl")[0]
    keep = corpus.keep(0, 0, 8)
    u = torch.rand(8, 12, dtype=torch.float64, generator=stream(0, "path", 0))
    t = stratified(1, 8, stream(0, "time", 0))[0][torch.randperm(8, generator=stream(0, "times", 0))]
    noisy = (u < 1 - t[:, None]) & keep
    assert row["loss"] == pytest.approx(float(noisy.sum() / keep.sum()) * math.log(6), rel=1e-5)


def test_an_evaluation_reports_a_bound_jumps_and_samples(tmp_path):
    out = run(tmp_path, 2, eval_rows=8, eval_samples=3, eval_steps=4, weight_ema=0.9)
    assert out.last["b0_n"] == 8
    assert out.last["b0_ppl"] > 1
    assert out.last["b0_se"] > 0
    assert out.last["jumps"] == 12  # every position leaves its mask once
    assert (out.last["precision"], out.last["recipe_hash"]) == ("float32", out.recipe_hash)
    lines = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert [len(line["text"]) for line in lines] == [12, 12, 12]


def test_the_error_of_a_single_sample_is_unknown_and_null_in_the_metrics(tmp_path):
    out = run(tmp_path, 2, eval_samples=1, eval_steps=4)
    assert (out.last["jumps_n"], out.last["jumps_se"]) == (1, None)
    assert '"jumps_se": null' in (tmp_path / "metrics.jsonl").read_text()
    assert evaluation_results(out.last)["hops"] == "12.00 ± ? per sample (n=1)"


def test_a_prediction_with_an_infinite_bound_is_evaluated_for_a_finite_number_of_steps(tmp_path):
    corpus = Letters()
    flow = hf.Flow(hf.Uniform.fit(corpus.counts), prediction=hf.Plain())
    out = train(network(flow.vocab), flow, corpus, out=tmp_path, steps=1, batch=8, **{**QUICK, "eval_rows": 4})
    assert out.last["bn_n"] == 4


def test_a_causal_network_learns_without_a_flow(tmp_path):
    torch.manual_seed(0)
    corpus = Letters()
    out = train(
        Causal(6, SMALL, dropout=0.0),
        None,
        corpus,
        out=tmp_path,
        steps=60,
        batch=8,
        **{**QUICK, "lr": 1e-2, "eval_rows": 8, "eval_samples": 2},
    )
    assert losses(tmp_path)[0] == pytest.approx(math.log(6), rel=0.3)
    assert out.last["nll"] < 0.9
    assert out.last["nll_n"] == 8


class Own(nn.Module):
    """Somebody's own network: no table, no features, no head."""

    def __init__(self, vocab, poison_at=None):
        super().__init__()
        self.embed, self.out = nn.Embedding(vocab.size, 8), nn.Linear(8, vocab.data)
        self.calls, self.poison_at = 0, poison_at

    def forward(self, xt, t):
        self.calls += self.training
        value = self.out(self.embed(xt))
        return value * float("nan") if self.calls - 1 == self.poison_at else value


def test_any_module_can_be_trained(tmp_path):
    corpus = Letters()
    flow = hf.Flow(hf.MultiMask.fit(corpus.counts), coupling=hf.ExactOT(hf.Hamming()))
    out = train(Own(flow.vocab), flow, corpus, out=tmp_path, steps=3, batch=8, **QUICK)
    assert out.step == 3


def test_a_cost_that_reads_embeddings_refuses_a_network_without_a_table(tmp_path):
    corpus = Letters()
    flow = hf.Flow(hf.MultiMask.fit(corpus.counts), coupling=hf.ExactOT(hf.SquaredEmbedding()))
    with pytest.raises(ValueError, match="table"):
        train(Own(flow.vocab), flow, corpus, out=tmp_path, steps=3, batch=8, **QUICK)


@pytest.mark.parametrize("step", [0, 3, 4])
def test_a_loss_that_is_not_a_number_stops_before_the_update(tmp_path, step):
    corpus = Letters()
    flow = hf.Flow(hf.Mask.fit(corpus.counts))
    torch.manual_seed(0)
    train(Own(flow.vocab), flow, corpus, out=tmp_path / "good", steps=step or 1, batch=8, **QUICK)
    torch.manual_seed(0)
    bad = Own(flow.vocab, poison_at=step)
    with pytest.raises(NotFinite, match=f"at step {step + 1};"):
        train(bad, flow, corpus, out=tmp_path / "bad", steps=6, batch=8, **QUICK)
    found = checkpoint.latest(tmp_path / "bad" / "checkpoints")
    assert found.step == step
    if step:
        assert equal({"model": found.groups["model"]}, {"model": weights(tmp_path / "good")["model"]})
    assert all(bool(torch.isfinite(tensor).all()) for tensor in found.groups["model"].values())
    dumped = json.loads((tmp_path / "bad" / f"not-finite-{step}.json").read_text())
    assert dumped["samples"] == [step * 8, step * 8 + 8]
    assert torch.equal(torch.tensor(dumped["x1"]), corpus.batch(0, step * 8, 8))


def test_the_dump_of_a_failed_step_holds_the_text_of_padded_sequences(tmp_path):
    corpus = Letters(padded=True)
    model = Causal(corpus.vocab_size, SMALL, dropout=0.0)
    with torch.no_grad():
        next(model.parameters()).fill_(float("inf"))
    task = CausalTask(model, corpus, Settings(batch=4), Share())
    trainer = Trainer(model, task, Settings(batch=4), torch.device("cpu"), Share())
    with pytest.raises(NotFinite) as failure:
        trainer.update(3)
    dumped = json.loads(trainer.dump(failure.value.outcome, tmp_path).read_text())
    assert torch.equal(torch.tensor(dumped["x1"]), corpus.batch(0, 12, 4))


def test_the_random_state_of_the_caller_is_left_alone(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    corpus = Letters()
    flow = hf.Flow(hf.Mask.fit(corpus.counts))
    model = network(flow.vocab)
    torch.manual_seed(5)
    train(model, flow, corpus, out=tmp_path, steps=2, batch=8, **QUICK)
    assert torch.equal(torch.rand(3), expected)


def test_a_finished_run_takes_no_further_step(tmp_path):
    run(tmp_path, 3)
    again = run(tmp_path, 3)
    assert again.step == 3
    assert again.last["loss"] == losses(tmp_path)[-1]
    assert len(losses(tmp_path)) == 3


def test_fewer_steps_than_were_taken_are_refused_and_change_nothing(tmp_path):
    run(tmp_path, 4)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    with pytest.raises(ValueError, match="steps must be at least 4"):
        run(tmp_path, 2)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
    assert run(tmp_path, 5).step == 5
    assert json.loads((tmp_path / "recipe.json").read_text())["recipe"]["steps"] == 5


CHANGES = [
    ("lr", 2e-3, True),
    ("batch", 16, True),
    ("ot_batch", 16, True),
    ("ot_ema", 0.9, True),
    ("weight_ema", 0.9, True),
    ("ahead", 1, True),
    ("warmup", 3, True),
    ("rate", "cosine", True),
    ("beta1", 0.8, True),
    ("beta2", 0.99, True),
    ("adam_eps", 1e-6, True),
    ("weight_decay", 0.1, True),
    ("clip", 0.5, True),
    ("seed", 1, True),
    ("steps", 3, False),
    ("accumulate", 2, False),
    ("log_every", 2, False),
    ("save_every", 2, False),
    ("save_minutes", 0.0, False),
    ("keep", 1, False),
    ("eval_rows", 2, False),
    ("deterministic", True, False),
    ("precision", "float32", False),
    ("device", "cpu", False),
]


@pytest.mark.parametrize(("key", "value", "refused"), CHANGES, ids=[key for key, _, _ in CHANGES])
def test_a_run_resumes_only_with_the_same_learned_settings(tmp_path, key, value, refused):
    corpus = Letters()
    flow = hf.Flow(hf.MultiMask.fit(corpus.counts))
    keys = {"steps": 2, "batch": 8, **QUICK}
    train(network(flow.vocab), flow, corpus, out=tmp_path, **keys)
    changed = {**keys, "steps": 3, key: value} if key != "rate" else {**keys, key: value}
    if refused:
        with pytest.raises(ValueError, match=f"{key}: "):
            train(network(flow.vocab), flow, corpus, out=tmp_path, **changed)
    else:
        assert train(network(flow.vocab), flow, corpus, out=tmp_path, **changed).step == 3


def test_another_flow_another_text_and_another_network_are_refused(tmp_path):
    run(tmp_path, 1)
    with pytest.raises(ValueError, match=r"flow\.coupling"):
        run(tmp_path, 1, coupling="exact")
    with pytest.raises(ValueError, match=r"data\.rows"):
        run(tmp_path, 1, Letters(rows=41))
    corpus = Letters()
    flow = hf.Flow(hf.MultiMask.fit(corpus.counts))
    with pytest.raises(ValueError, match=r"model\.weights"):
        train(Transformer(flow.vocab, Size(1, 64, 2)), flow, corpus, out=tmp_path, steps=1, batch=8, **QUICK)


def test_a_fresh_run_takes_another_folder_and_deletes_nothing(tmp_path):
    first = run(tmp_path / "run", 2)
    before = losses(first.path)
    second = run(tmp_path / "run", 1, fresh=True)
    assert second.path.name == "run-2"
    assert losses(first.path) == before


def test_a_text_of_another_vocabulary_is_refused(tmp_path):
    flow = hf.Flow(hf.MultiMask.fit(torch.ones(7, dtype=torch.int64)))
    with pytest.raises(ValueError, match="use the tokenizer of the text"):
        train(network(flow.vocab), flow, Letters(), out=tmp_path, steps=1, batch=8, **QUICK)


def test_an_unknown_key_is_named_with_the_nearest_one(tmp_path):
    with pytest.raises(ValueError, match="did you mean 'weight_ema'"):
        run(tmp_path, 1, wieght_ema=0.9)
    with pytest.raises(ValueError, match="did you mean 'lr'"):
        Settings.of({"optimizer.lr": 1})


def test_the_logger_is_called_with_every_row_of_metrics(tmp_path):
    rows = []
    run(tmp_path, 3, logger=rows.append)
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert rows == read(tmp_path / "metrics.jsonl")


@pytest.mark.parametrize("rate", ["constant", "cosine"])
def test_the_learning_rate_warms_up_then_is_constant_or_decays_to_a_tenth(rate):
    settings = Settings(steps=100, warmup=10, lr=1.0, rate=rate)
    assert learning_rate(settings, 0) == pytest.approx(0.1)
    assert learning_rate(settings, 9) == pytest.approx(1.0)
    assert learning_rate(settings, 10) == pytest.approx(1.0)
    assert learning_rate(settings, 100) == pytest.approx(1.0 if rate == "constant" else 0.1)
    with pytest.warns(DeprecationWarning, match=r"training\.trainer\.learning_rate"):
        assert settings.rate_at(5) == learning_rate(settings, 5)


def test_a_causal_network_is_compiled_up_to_its_head(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "compile", lambda body, **how: lambda x: asked.append(len(x)) or body(x))
    corpus, settings = Letters(), Settings(batch=4, compile=True)
    model = Causal(corpus.vocab_size, SMALL, dropout=0.0)
    task = CausalTask(model, corpus, settings, Share())
    Trainer(model, task, settings, torch.device("cpu"), Share()).update(0)
    assert asked == [4]


def test_a_batch_is_drawn_by_one_thread_and_the_number_of_threads_is_restored(monkeypatch):
    corpus, seen = Letters(), []
    flow = hf.Flow(hf.MultiMask.fit(corpus.counts))
    settings = Settings(batch=8, device="cpu", workers=0)
    model = network(flow.vocab)
    task = FlowTask(model, flow, corpus, settings, Share())
    drawn = task.batch
    monkeypatch.setattr(task, "batch", lambda *arguments: (seen.append(torch.get_num_threads()), drawn(*arguments))[1])
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        Trainer(model, task, settings, torch.device("cpu"), Share()).update(0)
        assert (seen, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("ot_ema", [0.0, 0.9])
def test_a_coupling_gets_the_average_of_the_embedding_table_if_there_is_one(ot_ema, monkeypatch):
    corpus, handed = Letters(), []
    flow = hf.Flow(hf.MultiMask.fit(corpus.counts), coupling=hf.ExactOT(hf.SquaredEmbedding()))
    settings = Settings(batch=4, device="cpu", workers=0, ot_ema=ot_ema)
    model = network(flow.vocab)
    task = FlowTask(model, flow, corpus, settings, Share())
    trainer, step = Trainer(model, task, settings, torch.device("cpu"), Share()), task._pairing.step
    monkeypatch.setattr(task._pairing, "step", lambda *given: (handed.append(given[1]), step(*given))[1])
    trainer.update(0)
    (seen,) = handed
    assert seen is (trainer.ot_average if ot_ema else model.table)
    task.close()


def test_a_run_from_one_mask_solves_no_coupling_and_needs_no_embedding_table(tmp_path):
    corpus = Letters()
    flow = hf.Flow(hf.Mask.fit(corpus.counts), coupling=hf.ExactOT(hf.SquaredEmbedding()))
    own = Own(flow.vocab)
    assert not hasattr(own, "table")
    keys = {**QUICK, "workers": 1}
    train(own, flow, corpus, out=tmp_path / "run", steps=2, batch=4, device="cpu", **keys)
    assert not any(key.startswith("ot_") for row in read(tmp_path / "run" / "metrics.jsonl") for key in row)


def test_a_network_with_fewer_tokens_than_its_flow_is_refused_before_anything_is_written(tmp_path):
    corpus = Letters()
    flow = hf.Flow(hf.MultiMask.fit(corpus.counts))
    model = Own(flow.vocab)
    model.embed = nn.Embedding(flow.vocab.data, 8)  # none for masks
    with pytest.raises(ValueError, match="fails on the last one"):
        train(model, flow, corpus, out=tmp_path / "run", steps=1, device="cpu")
    with pytest.raises(ValueError, match=r"must be a torch\.nn\.Module, got Flow"):
        unchecked(train)(flow, model, corpus, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
