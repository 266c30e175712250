"""A user's own metrics: functions of the samples, in Python and on the command line."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import toys

import hopflow as hf
from hopflow import cli
from hopflow.data.symbols import Symbols
from hopflow.evaluation import compare_table, record, table
from hopflow.evaluation.compare import Comparison
from hopflow.evaluation.metrics import Samples
from hopflow.evaluation.smiles import is_smiles
from hopflow.evaluation.validators import as_metric, novelty, uniqueness

FAST = {"rows": 4, "seconds": 0.0, "n": 8, "draws": 2, "paths": 0, "steps": (2,), "eta": 0}


def has_a(samples: Samples) -> list[bool]:
    return ["A" in text for text in samples.texts]


def evaluated(seed: int = 0, **keys) -> list[hf.Row]:
    torch.manual_seed(seed)
    flow = hf.Flow(hf.Uniform(hf.Vocab(5)))
    model = hf.Transformer(flow.vocab, hf.Size(layers=1, width=16, heads=2), dropout=0.0)
    x1 = torch.randint(5, (8, 6), generator=toys.generator(3))
    return hf.evaluate(model, flow, x1, tokenizer=Symbols(tuple("ABCDE")), **FAST, **keys)


def test_a_function_becomes_rows_with_n_and_error_that_eval_compare_and_report_show(tmp_path):
    for place, name in enumerate(("a", "b")):
        (tmp_path / name).mkdir()
        record.keep(tmp_path / name, evaluated(place, validators=[has_a, uniqueness]))
    rows = record.read(tmp_path / "a")
    (row,) = [row for row in rows if row.quantity == "has_a" and row.set == "samples"]
    share = row.value
    assert row.n == 8
    assert row.stderr == pytest.approx(math.sqrt(share * (1 - share) / 7))
    assert row.more["metric"].endswith(":has_a")
    assert "has_a" in table.page(rows)
    assert "has_a" in table.page(rows, width=80)
    found = Comparison.of([tmp_path / "a", tmp_path / "b"])
    assert "has_a" in compare_table.page(found)
    assert "has_a" in json.dumps(found.as_json())
    assert "has_a" in hf.report.write([tmp_path / "a", tmp_path / "b"], tmp_path / "report").read_text()


def test_the_other_metrics_do_not_change():
    def plain(rows):
        return [(row.set, row.quantity, row.value) for row in rows if row.quantity != "has_a"]

    assert plain(evaluated(validators=[has_a])) == plain(evaluated())


def test_uniqueness_is_the_number_of_different_sequences_over_n():
    samples = Samples(torch.tensor([[0, 1], [0, 1], [1, 1], [2, 0]]))
    assert as_metric(uniqueness).measure(samples).value == 3 / 4


def test_novelty_is_the_share_of_sequences_that_were_not_trained_on():
    known = torch.tensor([[0, 1], [2, 2]])
    samples = Samples(torch.tensor([[0, 1], [0, 1], [1, 1], [2, 0]]), training=lambda: iter(known.split(1)))
    assert as_metric(novelty).measure(samples).value == 2 / 4


def test_sequences_are_compared_up_to_their_end():
    tokenizer = Symbols(tuple("AB")).with_end()
    tokens = torch.tensor([[0, 2, 1], [0, 2, 2], [0, 1, 2], [1, 1, 1]])  # A and AB, whatever follows the end, and BBB
    samples = Samples(tokens, None, tokenizer, lambda: iter([torch.tensor([[0, 2, 2], [1, 2, 2]])]))
    assert as_metric(uniqueness).measure(samples).value == 3 / 4
    assert as_metric(novelty).measure(samples).value == 2 / 4


def test_texts_end_at_the_end_of_text_token():
    tokenizer = Symbols(tuple("AB")).with_end()
    samples = Samples(torch.tensor([[0, 1, tokenizer.end, tokenizer.end], [1, 1, 1, 0]]), tokenizer=tokenizer)
    assert samples.texts == ["AB", "BBBA"]


@pytest.mark.parametrize(
    "text", ["C", "CCO", "CC(=O)O", "c1ccccc1", "C1CC1C", "[NH4+].[Cl-]", "C%12CC%12", "N#N", "F/C=C/F"]
)
def test_a_smiles_string_is_valid(text):
    assert is_smiles(text)


@pytest.mark.parametrize(
    "text", ["", "C1CC", "CC(", "CC)", "C()", "(C)", "=C", "C=", "C==C", "CX", "1CC1", "C.", "C(=)C", "[]"]
)
def test_a_text_with_an_open_ring_branch_or_bond_is_no_smiles_string(text):
    assert not is_smiles(text)


@pytest.mark.parametrize(
    ("validator", "message"),
    [
        (lambda samples: [1.0], "define it with def"),
        ("has_b", "there is no metric 'has_b'"),
        ("uniquenes", "did you mean"),
        ("nowhere_at_all:f", "there is no module nowhere_at_all"),
        ("math:nothing", "math has no nothing"),
        ("math:pi", "is not a function"),
        ("a b:c", "write metric=package.module:function"),
        (3, "must be functions"),
        (novelty, "needs the training rows"),
    ],
    ids=[
        "lambda",
        "no name",
        "typo",
        "no module",
        "no function",
        "a number",
        "no identifier",
        "not callable",
        "no rows",
    ],
)
def test_a_validator_that_cannot_work_is_refused_before_anything_is_measured(validator, message):
    with pytest.raises(ValueError, match=message):
        evaluated(validators=[validator])


def wrong(values):
    def metric(samples):
        return values(len(samples.tokens))

    return metric


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (lambda n: 1.0, "one number per sequence"),
        (lambda n: [1.0] * (n + 1), "one number per sequence"),
        (lambda n: [math.nan] * n, "finite numbers, got nan for sequence 0"),
        (lambda n: None, "the metric metric failed"),
        (lambda n: 1 / 0, "ZeroDivisionError"),
    ],
    ids=["one number", "too many", "NaN", "None", "an error"],
)
def test_a_function_that_returns_something_else_is_one_message(values, message):
    with pytest.raises(ValueError, match=message):
        evaluated(validators=[wrong(values)])


def test_two_metrics_may_not_have_one_name():
    with pytest.raises(ValueError, match="metrics with the name has_a"):
        evaluated(validators=[has_a, has_a])


def test_a_run_is_measured_by_functions_that_the_command_line_names(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("HOPFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOPFLOW_REPORT", "off")
    Path("molecules.smi").write_text("CCO\nc1ccccc1\nCC(=O)O\nCCN\n" * 8)
    Path("my_metrics.py").write_text("def carbons(samples):\n    return [t.count('C') for t in samples.texts]\n")

    def hopflow(*words):
        command = [sys.executable, "-m", "hopflow", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=300)

    small = ("steps=2", "size=micro", "batch=4", "eval_samples=2", "eval_steps=2", "threads=1")
    assert hopflow("train", "molecules.smi", *small).returncode == 0
    names = "metric=smiles_validity,uniqueness,novelty,my_metrics:carbons"
    out = hopflow("eval", "runs/molecules", "n=4", "steps=2", "eta=0", names)
    assert out.returncode == 0, out.stderr
    rows = {(row.set, row.quantity): row for row in record.read(Path("runs/molecules"))}
    assert rows["held-out", "smiles_validity"].value == 1.0
    assert rows["held-out", "novelty"].value == 0.0  # every molecule occurs eight times
    assert rows["samples", "carbons"].n == 4
    Path("broken.py").write_text("import nothing_at_all\n")
    Path("raises.py").write_text("def late(samples):\n    raise KeyError('x')\n\n\ndef one(samples):\n    return 1.0\n")
    kept = Path("runs/molecules/eval.json").read_bytes()
    for metric, message in {
        "my_metrics:nothing": "my_metrics has no nothing",
        "nowhere_at_all:f": "there is no module nowhere_at_all",
        "broken:f": "nothing_at_all",
        "raises:late": "the metric late failed: KeyError: 'x'",
        "raises:one": "must return one number per sequence",
    }.items():
        monkeypatch.setattr(sys, "argv", ["hopflow", "eval", "runs/molecules", "n=4", "steps=2", f"metric={metric}"])
        with pytest.raises(SystemExit, match=r"^2$"):
            cli.main()
        said = "".join(capsys.readouterr())
        assert message in said
        assert "Traceback" not in said
        assert Path("runs/molecules/eval.json").read_bytes() == kept
