"""The verdict: the best bound of each sampler, on the same sequences, beside what every model should beat."""

import math

import pytest
import torch

from hopflow.evaluation.references import References
from hopflow.evaluation.rows import Row
from hopflow.evaluation.verdict import verdict


def bound(quantity: str, nats: float, error: float, eta: float = 0.0, n: int = 64, each=(), **more) -> Row:
    ppl = math.exp(nats / 16)
    facts = {"sampler": f"η = {eta:g}", "steps": None, "checkpoint": 9, "length": 16, "unigram_of": "this text"}
    facts |= {"random_nats": 16 * math.log(32), "unigram_nats": 16 * 3 * math.log(2)}
    own = {"set": "held-out", "unit": "ppl", "is_bound": True, "dtype": "float32", "recipe_hash": None}
    own |= {"value": ppl, "stderr": ppl * error / 16, "n": n, "eta": eta, "more": facts | more, "each": each}
    return Row("run", quantity=quantity, **own)


def test_the_verdict_has_bits_sampler_n_and_reference_values():
    first, second = verdict([bound("b0", 16 * 2 * math.log(2), 1.0), bound("b1", 16 * math.log(2), 1.0, eta=1.0)])
    error = f"{1 / 16 / math.log(2):.2g}"
    assert first == (
        f"held-out: at most 2 ± {error} bits per token with η = 0 (b0, n = 64), "
        f"at most 1 ± {error} with η = 1 (b1, n = 64), in continuous time."
    )
    assert second == "Lower is better. For comparison: 5 for random tokens, 3 for the token frequencies of this text."


def test_bits_are_per_character_where_these_are_known():
    per = {"bits_per_char": 1.5, "bits_per_char_stderr": None, "characters": 32.0}
    first, second = verdict([bound("b0", 30, 1.0, n=1, **per)])
    assert first.startswith("held-out: at most 1.5 ± ? bits per character with η = 0 (b0, n = 1)")
    assert (
        second == "Lower is better. For comparison: 2.5 for random tokens, 1.5 for the token frequencies of this text."
    )


@pytest.mark.parametrize(
    ("other", "chosen"),
    [
        (bound("bk", 25, 1.0), "bk"),
        (bound("bk", 29, 1.0), "b0"),  # lower within its error only
        (bound("bk", 25, 1.0, n=16), "b0"),  # of other sequences
        (bound("coupled_info", 10, 1.0, ot_n=8), "b0"),
    ],
)
def test_a_bound_is_preferred_if_it_is_lower_beyond_its_error_on_the_same_sequences(other, chosen):
    assert f"({chosen}, n = 64)" in verdict([bound("b0", 30, 1.0), other])[0]


def test_bounds_of_different_n_are_compared_by_the_sequences_that_both_have():
    torch.manual_seed(0)
    levels = 30 + 8 * torch.randn(64, dtype=torch.float64)
    levels[16:] -= 20  # the text is easier where one of them has not been
    lower = levels[:16] - 3 + 0.1 * torch.randn(16, dtype=torch.float64)
    b0 = bound("b0", float(levels.mean()), 1.0, each=tuple(levels.tolist()))
    bk = bound("bk", float(lower.mean()), 2.0, n=16, each=tuple(lower.tolist()))
    assert bk.value > b0.value
    assert "(bk, n = 16)" in verdict([b0, bk])[0]


def test_numbers_that_are_equal_by_theory_are_said_once_and_only_if_they_are_equal():
    b0 = bound("b0", 30, 1.0)
    copy = bound("b1", 30, 1.0, eta=1.0, equal_to_eta=0.0)
    assert "with η = 0 or 1 (b0 = b1, n = 64), in" in verdict([b0, copy])[0]
    older = bound("b1", 31, 1.0, eta=1.0, n=48, equal_to_eta=0.0)  # of an earlier evaluation
    assert "with η = 0 (b0, n = 64), at most" in verdict([b0, older])[0]
    assert "(b1, n = 48)" in verdict([b0, older])[0]


def test_the_verdict_is_that_of_the_newest_checkpoint():
    said = verdict([bound("b0", 10, 1.0, checkpoint=5), bound("b0", 30, 1.0)])
    assert len(said) == 2
    assert f"at most {30 / 16 / math.log(2):.4g}" in said[0]


def test_the_references_are_the_cross_entropies_of_two_laws():
    x1 = torch.tensor([[0, 0, 1, 2], [0, 0, 0, 0]])
    own = References.of(x1, 4)
    entropy = -sum(p * math.log(p) for p in (6 / 8, 1 / 8, 1 / 8))
    assert own.facts(2)["unigram_nats"] == pytest.approx(4 * entropy)
    assert own.facts(2)["random_nats"] == pytest.approx(4 * math.log(4))
    assert own.facts(1)["unigram_nats"] == pytest.approx(-2 * math.log(6 / 8) - 2 * math.log(1 / 8))
    assert own.facts(1)["unigram_of"] == "this text"
    trained = References.of(x1, 4, torch.tensor([1, 0, 3, 0]))
    assert trained.facts(1)["unigram_nats"] == pytest.approx(-math.log((2 / 8) ** 2 * (1 / 8) * (4 / 8)))
    assert trained.law == "the training text"
