"""Wrong arguments from Python: each raises a ValueError that says what is wrong and what is allowed."""

from dataclasses import replace

import jaxtyping
import pytest
import torch

import hopflow as hf
from hopflow import exact
from hopflow.data.tokenizers import Characters

VOCAB = hf.Vocab(5, masks=1)
FLOW = hf.Flow(hf.Mask(VOCAB))
LETTERS = Characters("abc")
X1 = torch.zeros((2, 4), dtype=torch.long)


@pytest.fixture(autouse=True)
def as_installed():
    """Without the checks of types that tests add: a user does not have them."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module")
def model():
    return hf.Transformer(VOCAB, hf.Size(1, 8, 2))


@pytest.fixture(scope="module")
def small():
    """A network for fewer tokens than the flow has."""
    return hf.Transformer(hf.Vocab(3, masks=1), hf.Size(1, 8, 2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": "hot"}, "temperature must be ≥ 0 .* got 'hot'"),
        ({"top_k": 1.5}, "top_k must be an integer ≥ 1, got 1.5"),
        ({"top_p": "0.9"}, "top_p must be a number > 0 and ≤ 1, got '0.9'"),
        ({"min_p": "0.1"}, "min_p must be a number from 0 to 1, got '0.1'"),
        ({"seed": "a"}, r"seed must be an integer from 0 to 2\^64 - 1, got 'a'"),
        ({"eta": "1"}, "eta must be a number or a function of t, got '1'"),
        ({"batch": 2.5}, "batch must be an integer ≥ 1, got 2.5"),
        ({"first": -1}, r"first, .* must be an integer from 0 to 2\^62 - 1, got -1"),
        ({"first": 1.5}, "first, .* got 1.5"),
        ({"guidance": "2"}, "guidance must be a finite number .* got '2'"),
        ({"sampler": "euler"}, r"sampler must be a Sampler, e.g. Euler\(32\), got 'euler'"),
        ({"device": "gpu"}, "device=gpu is not a device of torch"),
    ],
)
def test_wrong_sampling_options(model, options, message):
    with pytest.raises(ValueError, match=message):
        hf.generate(model, FLOW, n=1, length=4, **options)


def test_network_and_flow_in_the_wrong_order(model, small):
    calls = (
        lambda *pair: hf.generate(*pair, n=1, length=4),
        lambda *pair: hf.nll_bound(*pair, X1),
        lambda *pair: hf.reversal_bound(*pair, X1),
        lambda *pair: hf.reversal_certificate(*pair, n=1, length=4),
    )
    for call in calls:
        with pytest.raises(ValueError, match=r"flow must be a Flow, got Transformer\. Pass the network first"):
            call(FLOW, model)
        with pytest.raises(ValueError, match="flow must be a Flow, got NoneType"):
            call(model, None)
        with pytest.raises(ValueError, match="model must be a network, got str"):
            call("tiny", FLOW)
        with pytest.raises(ValueError, match=r"the network has Vocab.data=3, masks=1., the flow has Vocab.data=5"):
            call(small, FLOW)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draws": "8"}, "draws must be an integer ≥ 2 .* got '8'"),
        ({"batch": "8"}, "batch, .* must be an integer ≥ 1, got '8'"),
        ({"steps": 8.0}, "steps must be an integer ≥ 1, got 8.0"),
        ({"seed": "0"}, "seed must be an integer, got '0'"),
        ({"eta": "1"}, "eta must be a number or a function of t, got '1'"),
    ],
)
def test_wrong_options_of_a_bound(model, options, message):
    with pytest.raises(ValueError, match=message):
        hf.nll_bound(model, FLOW, X1, **options)


def test_an_eta_may_be_a_tensor_with_one_number(model):
    assert hf.nll_bound(model, FLOW, X1, eta=torch.tensor(1.0)).quantity == "b1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"flow": "mask"}, "flow must be a Flow, or None, got str"),
        (
            {"corpus": X1},
            r"corpus must be the result of hf.data.load or hf.data.rows, got Tensor, which has no vocab_size",
        ),
        ({"out": None}, "out must be the path of a folder, got None"),
        ({"settings": {"steps": 1}}, "settings must be Settings.*, got dict. Or pass keywords: steps=1000"),
        ({"logger": "print"}, "logger and progress must be functions, got str"),
        ({"progress": 3}, "logger and progress must be functions, got int"),
    ],
)
def test_wrong_arguments_of_train(model, tmp_path, arguments, message):
    (tmp_path / "text.txt").write_text("abcab" * 40)
    right = {"flow": FLOW, "corpus": hf.data.load(tmp_path / "text.txt", length=4, holdout=0, cache=tmp_path / "cache")}
    with pytest.raises(ValueError, match=message):
        hf.train(model, **{**right, "out": tmp_path / "run", **arguments})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("key", "most"), [("threads", 1024), ("workers", 256)])
def test_more_threads_or_processes_than_a_machine_can_have(key, most):
    assert getattr(hf.Settings.of({key: most}), key) == most
    with pytest.raises(ValueError, match=f"{key} must be an integer ≥ . and < {most + 1}, got 1000000"):
        hf.Settings.of({key: 10**6})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": "12"}, "length must be an integer ≥ 1, got '12'"),
        ({"holdout": "5%"}, "holdout must be a fraction from 0 to 1, e.g. 0.02, got '5%'"),
        ({"source": None}, "source must be the name of a file, folder or corpus, got NoneType"),
        ({"source": ["a", "b"]}, "source must be the name of a file, folder or corpus, got list"),
    ],
)
def test_wrong_arguments_of_load(arguments, message):
    with pytest.raises(ValueError, match=message):
        hf.data.load(**{"source": "docs", **arguments})


def test_wrong_arguments_of_saving_and_loading(model, tmp_path):
    with pytest.raises(ValueError, match=r"model must be a torch\.nn\.Module, got str"):
        hf.save_pretrained(tmp_path / "saved", "model")
    with pytest.raises(ValueError, match=r"tokenizer must have a method to_json, .* got 'char'"):
        hf.save_pretrained(tmp_path / "saved", model, FLOW, tokenizer="char")
    with pytest.raises(ValueError, match="flow must be a Flow, or None, got str"):
        hf.save_pretrained(tmp_path / "saved", model, "mask")
    assert not (tmp_path / "saved").exists()
    with pytest.raises(ValueError, match="folder must be the path of a run or of a saved network, got None"):
        hf.from_pretrained(None)
    hf.save_pretrained(tmp_path / "saved", model, FLOW)
    with pytest.raises(ValueError, match="device=gpu is not a device of torch"):
        hf.from_pretrained(tmp_path / "saved", device="gpu")


@pytest.mark.parametrize("make", [hf.Mask, hf.Uniform, hf.Transformer, hf.Convolutional])
def test_a_number_in_place_of_a_vocabulary(make):
    with pytest.raises(ValueError, match=r"vocab must be a Vocab, e.g. Vocab\(27, masks=1\), got 30"):
        make(30)


def test_a_flow_in_place_of_a_vocabulary_is_named_by_its_type():
    with pytest.raises(ValueError, match=r"got Flow\.$"):
        hf.Transformer(FLOW)


def test_a_class_in_place_of_an_objective():
    with pytest.raises(ValueError, match=r"objective must be an Objective, e\.g\. CrossEntropy\(\), got <class"):
        hf.Flow(FLOW.source, objective=hf.CrossEntropy)


def test_counts_may_be_a_list():
    assert hf.BagOfWords.fit([1, 2, 3]) == hf.BagOfWords.fit(torch.tensor([1, 2, 3]))


def test_a_text_without_a_name():
    with pytest.raises(ValueError, match="source is empty"):
        hf.data.load("")


@pytest.mark.parametrize("text", [5, ["a", "b"], None])
def test_only_a_text_is_encoded(text):
    with pytest.raises(ValueError, match=f"text must be a str, got {type(text).__name__}"):
        LETTERS.encode(text)


@pytest.mark.parametrize("ids", [X1, X1.numpy(), X1.tolist(), "ab", ["a"], 1.5])
def test_only_the_ids_of_one_text_are_decoded(ids):
    with pytest.raises(ValueError, match="ids must be the token ids of one text"):
        LETTERS.decode(ids)
    assert LETTERS.decode(X1[0]) == LETTERS.decode(X1[0].tolist()) == LETTERS.decode(X1[0].numpy()) == "aaaa"


@pytest.mark.parametrize(
    ("sampler", "x1", "message"),
    [
        (lambda: hf.Euler(4), X1, r"sampler must be a planner, such as Confidence\(4\), got .*nll_bound\(steps=N\)"),
        (lambda: "confidence", X1, "sampler must be a planner, .* got 'confidence'"),
        (lambda: hf.Confidence(1.5), X1, "must be an integer ≥ 1, got 1.5"),
        (lambda: hf.EntropyBound("a"), X1, "must be a finite number ≥ 0, got 'a'"),
        (lambda: hf.Confidence(2), X1[0], r"token ids must be an int64 or int32 tensor of shape \(n, L\)"),
        (lambda: hf.Confidence(2), X1.float(), "token ids must be an int64 or int32 tensor"),
    ],
)
def test_planned_nll_names_a_wrong_planner_and_wrong_tokens(model, sampler, x1, message):
    with pytest.raises(ValueError, match=message):
        hf.planned_nll(model, FLOW, x1, sampler())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hf.Euler(3, "cosine"), r"grid must be a Grid, e.g. CosineGrid\(\), got 'cosine'"),
        (lambda: hf.RandomOrder(1.5), "per_call must be an integer ≥ 1, got 1.5"),
        (lambda: hf.RandomOrder("2"), "per_call must be an integer ≥ 1, got '2'"),
        (lambda: hf.Mixed(VOCAB, "0.1"), r"uniform, .* must lie in \[0, 1\], got '0.1'"),
        (lambda: hf.PositionFrequencies(hf.Vocab(2), (0.5, 0.5)), "a list of numbers for each position, got a number"),
    ],
)
def test_samplers_and_sources_of_wrong_types(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda oracle, joint: replace(oracle, joint=joint(length=3)), "x0 of the joint .* sequence of 2 tokens"),
        (lambda oracle, joint: replace(oracle, joint=joint(data=4)), "x0 of the joint .* tokens from 0 to 2"),
        (lambda oracle, joint: replace(oracle, joint=joint(rows=2)), "x1 of the joint .* for each of 3 weights"),
        (lambda oracle, joint: exact.rectify(oracle, 1.5), "steps must be an integer ≥ 1, or None .* got 1.5"),
        (lambda oracle, joint: exact.planned_law(oracle, hf.Euler(2)), "sampler must be a planner, such as Confidence"),
    ],
)
def test_wrong_arguments_of_the_oracle(make, message):
    def joint(length: int = 2, data: int = 3, rows: int = 3) -> exact.Joint:
        x = torch.full((3, length), data - 1)
        return exact.Joint(x, x[:rows], torch.full((3,), 1 / 3, dtype=torch.float64))

    oracle = exact.Oracle(hf.Flow(hf.Uniform(hf.Vocab(3))), torch.full((9,), 1 / 9), 2)
    replace(oracle, joint=joint())  # a right one
    with pytest.raises(ValueError, match=message):
        make(oracle, joint)
