"""lm-evaluation-harness with local tasks: multiple choice, rolling perplexity, generation. Skipped without lm_eval."""

import json
import math
import sys
from types import SimpleNamespace

import pytest
import torch
import toys
from pages import blocks, read

import hopflow as hf
from hopflow import exact
from hopflow.data.tokenizers import Bytes, Characters
from hopflow.exact import Oracle

pytest.importorskip("lm_eval")
from hopflow.adapters import harness
from hopflow.adapters.harness import HopflowLM, _parts

LETTERS = Characters("abc")
LENGTH = 4
SMALL = hf.Size(layers=1, width=16, heads=2)


@pytest.fixture
def folder(tmp_path):
    """A saved network on three letters, from one mask and without time, so that everything can be enumerated."""
    torch.manual_seed(0)
    vocab = hf.Vocab(3, masks=1)
    network = toys.awake(hf.Transformer(vocab, SMALL, time=False))
    recipe = {"length": LENGTH}
    return hf.save_pretrained(tmp_path / "run", network, hf.Flow(hf.Mask(vocab)), tokenizer=LETTERS, recipe=recipe)


def request(*arguments):
    return SimpleNamespace(args=arguments)


def conditional_bounds(folder, context: str, count: int) -> torch.Tensor:
    """B_0 of every continuation of `count` letters, by the oracle of the flow on these positions."""
    saved, before = hf.from_pretrained(folder), torch.tensor(LETTERS.encode(context), dtype=torch.int64)

    def network(xt, t):
        return saved.model(torch.cat([before.expand(len(xt), -1), xt], 1), t.float())[:, len(before) :].double()

    with torch.no_grad():
        return exact.bound(Oracle(saved.flow, torch.full((3**count,), 3.0**-count), count, network))


@pytest.mark.parametrize(("context", "continuation"), [("ab", "c"), ("ab", "ca"), ("c", "aba"), ("", "bcab")])
def test_the_loglikelihood_is_the_conditional_bound_of_the_oracle(folder, context, continuation):
    lm = HopflowLM(folder, device="cpu")
    ((found, _),) = lm.loglikelihood([request(context, continuation)])
    row = int(sum(i * 3**power for power, i in enumerate(reversed(LETTERS.encode(continuation)))))
    assert found == pytest.approx(-float(conditional_bounds(folder, context, len(continuation))[row]), abs=1e-5)
    assert lm.rows[-1]["stderr"] == 0


def test_the_greedy_continuation_is_the_most_likely_token(folder):
    lm = HopflowLM(folder, device="cpu")
    found = lm.loglikelihood([request("abc", letter) for letter in "abc"])
    assert [greedy for _, greedy in found] == [score == max(s for s, _ in found) for score, _ in found]


def test_a_score_does_not_depend_on_other_requests_or_the_batch(folder):
    alone = HopflowLM(folder, device="cpu", draws=4).loglikelihood([request("a", "bca")])
    among = HopflowLM(folder, device="cpu", draws=4, batch_size=1).loglikelihood(
        [request("a", "cc"), request("a", "bca"), request("", "b")]
    )
    assert among[1] == pytest.approx(alone[0], abs=1e-5)


def test_a_long_text_is_scored_in_parts_that_see_what_precedes_them():
    assert list(_parts([], [0, 1, 2, 3, 4], 4)) == [([], [0, 1, 2, 3]), ([1, 2, 3], [4])]
    assert list(_parts([9], [0, 1, 2, 3, 4], 4)) == [([9], [0, 1, 2]), ([1, 2], [3, 4])]
    assert list(_parts([7, 8, 9], [0, 1], 4)) == [([8, 9], [0, 1])]
    assert list(_parts([7], [], 4)) == []


def test_the_rolling_loglikelihood_is_the_sum_of_its_parts(folder):
    lm = HopflowLM(folder, device="cpu")
    (found,) = lm.loglikelihood_rolling([request("abcab")])
    first, second = conditional_bounds(folder, "", 4), conditional_bounds(folder, "bca", 1)
    assert found == pytest.approx(-float(first[0 * 27 + 1 * 9 + 2 * 3 + 0] + second[1]), abs=1e-5)


def test_generation_continues_the_context_and_stops_before_the_first_stop_string(folder):
    lm = HopflowLM(folder, device="cpu", max_length=12)
    (text,) = lm.generate_until([request("ab", {"max_gen_toks": 6})])
    assert len(text) == 6
    cut = lm.generate_until([request("ab", {"max_gen_toks": 6, "until": [text[2]]})])
    assert cut == [text[: text.index(text[2])]]


def test_repeated_requests_with_do_sample_get_different_samples_of_temperature_one(folder):
    lm = HopflowLM(folder, device="cpu", max_length=12)

    def texts(**options) -> list[str]:
        return lm.generate_until([request("ab", {"max_gen_toks": 8, **options})] * 4)

    sampled = texts(do_sample=True)
    assert len(set(sampled)) > 1
    assert sampled == texts(do_sample=True, temperature=1.0)
    assert len(set(texts())) == 1
    assert len(set(texts(do_sample=True, temperature=0.0))) == 1


def test_a_context_of_blanks_is_the_start_of_a_text(tmp_path):
    tokenizer = Bytes(ends=True)
    vocab = hf.Vocab(tokenizer.size, masks=1)
    network = toys.awake(hf.Transformer(vocab, SMALL, time=False))
    hf.save_pretrained(tmp_path / "run", network, hf.Flow(hf.Mask(vocab)), tokenizer=tokenizer)
    lm = HopflowLM(tmp_path / "run", device="cpu")
    assert lm.eot_token_id is not None
    assert lm.loglikelihood([request(" ", "a")]) == lm.loglikelihood([request("", " a")])


def test_multiple_choice_rolling_and_generation_tasks_run_in_the_harness(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import lm_eval
    from lm_eval.tasks import TaskManager

    rows = [{"text": "abcab", "context": "ab", "choices": ["c", "a", "b"], "label": 1}] * 3
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    common = f"dataset_path: json\ndataset_kwargs:\n  data_files: {tmp_path / 'rows.jsonl'}\ntest_split: train\n"
    tasks = {
        "letters_choice": "output_type: multiple_choice\ndoc_to_text: '{{context}}'\ndoc_to_target: label\n"
        "doc_to_choice: choices\ntarget_delimiter: ''\nmetric_list:\n  - metric: acc\n",
        "letters_rolling": "output_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: '{{text}}'\n"
        "metric_list:\n  - metric: byte_perplexity\n",
        "letters_generated": "output_type: generate_until\ndoc_to_text: '{{context}}'\ndoc_to_target: c\n"
        "generation_kwargs:\n  max_gen_toks: 2\n  until: ['!']\nmetric_list:\n  - metric: exact_match\n",
    }
    for name, text in tasks.items():
        (tmp_path / f"{name}.yaml").write_text(f"task: {name}\n{common}{text}")
    found = lm_eval.simple_evaluate(
        model="hopflow",
        model_args={"pretrained": str(folder), "scores": str(tmp_path / "scores.jsonl")},
        tasks=list(tasks),
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        device="cpu",
        batch_size=2,
        bootstrap_iters=0,
    )
    bounds = conditional_bounds(folder, "ab", 1)
    assert found["results"]["letters_choice"]["acc,none"] == float(bounds.argmin() == 0)
    nats = float(conditional_bounds(folder, "", 4)[15] + conditional_bounds(folder, "bca", 1)[1])
    assert found["results"]["letters_rolling"]["byte_perplexity,none"] == pytest.approx(math.exp(nats / 5), rel=1e-4)
    assert 0 <= found["results"]["letters_generated"]["exact_match,none"] <= 1
    assert found["config"]["bound"] == "b0"
    assert len((tmp_path / "scores.jsonl").read_text().splitlines()) == 3 * 3 + 3 * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"draws": 1}, "draws must be an integer ≥ 2, got 1"),
        ({"bound": "tight"}, "bound must be auto or one of b0"),
        ({"batch_size": 0}, "batch_size must be an integer ≥ 1, got 0"),
        ({"batch_size": "many"}, "batch_size must be auto or an integer ≥ 1, got 'many'"),
        ({"max_length": 1}, "max_length must be an integer ≥ 2, got 1"),
    ],
)
def test_wrong_arguments_are_named(folder, arguments, message):
    with pytest.raises(ValueError, match=message):
        HopflowLM(folder, device="cpu", **arguments)


def test_a_network_without_a_flow_is_refused(tmp_path):
    hf.save_pretrained(tmp_path / "causal", hf.Causal(LETTERS.size, SMALL), tokenizer=LETTERS)
    with pytest.raises(ValueError, match="a saved network with a flow is needed"):
        HopflowLM(tmp_path / "causal", device="cpu")


def test_a_network_with_labels_is_refused(tmp_path):
    flow = hf.Flow(hf.Uniform(hf.Vocab(LETTERS.size)))
    network = hf.Transformer(flow.vocab, SMALL, labels=2)
    hf.save_pretrained(tmp_path / "labelled", network, flow, tokenizer=LETTERS)
    with pytest.raises(ValueError, match="labelled has labels, which requests of lm-evaluation-harness cannot name"):
        HopflowLM(tmp_path / "labelled", device="cpu")


def test_the_commands_of_the_page_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    page = [*blocks(read("docs/harness.md"))]
    for block in page:
        if block.language == "text":
            name, _, content = block.code.removeprefix("# ").partition("\n")
            (tmp_path / name).write_text(content)
    letters = Characters("".join(sorted(set((tmp_path / "bottles.jsonl").read_text()))))
    vocab = hf.Vocab(letters.size, masks=1)
    network = hf.Transformer(vocab, SMALL)
    recipe = {"length": 64}
    hf.save_pretrained("runs/my_book", network, hf.Flow(hf.Mask(vocab)), tokenizer=letters, recipe=recipe)
    (command,) = [words for block in page for words in block.commands if "hopflow.adapters.harness" in words]
    monkeypatch.setattr(sys, "argv", ["lm_eval", *command[3:]])
    harness.main()
    assert "|bottles|" in capsys.readouterr().out.replace(" ", "")
    rows = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert len(rows) == 12
    assert all(row["quantity"] == "b0" and row["stderr"] >= 0 for row in rows)
