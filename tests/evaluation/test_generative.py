"""Generative perplexity: both averages, their errors, and what counts."""

import math
import statistics

import pytest
import torch
from toys import generator

import hopflow as hf
from hopflow.data.tokenizers import Bytes, Characters
from hopflow.evaluation.judge import Judge
from hopflow.evaluation.measurement import Measurement

LETTERS = Characters("abcd")
NATS = torch.tensor([0.1, 1.0, 2.0, 3.5], dtype=torch.float64)


class Unigram(Judge):
    """So many nats for each letter, whatever stands before it."""

    def __init__(self, opened: bool = True, nats: torch.Tensor = NATS) -> None:
        super().__init__(LETTERS, 16, opened, torch.device("cpu"))
        self.nats = nats

    @property
    def identity(self):
        return {"kind": "table", "name": "unigram", "precision": "float64"}

    def _nats(self, x, lengths):
        there = torch.arange(x.shape[1]) < lengths[:, None]
        there[:, 0] &= self.opened
        return torch.where(there, self.nats[x], 0.0).sum(1)


def test_both_averages_are_those_of_a_calculation_by_hand():
    found = hf.generative_perplexity(["aaaa", "bc", "d"], Unigram())
    assert found.corpus.value == pytest.approx(math.exp((0.4 + 3.0 + 3.5) / 7))
    each = [math.exp(0.1), math.exp(1.5), math.exp(3.5)]
    assert found.mean_of_samples.value == pytest.approx(statistics.mean(each))
    assert found.mean_of_samples.stderr == pytest.approx(statistics.stdev(each) / math.sqrt(3))
    assert found.bits_per_byte.value == pytest.approx(6.9 / 7 / math.log(2))
    assert (found.n, found.too_short, found.retokenised) == (3, 0, True)
    assert [number.quantity for number in found] == ["gen_ppl", "gen_ppl_mean", "gen_bits_per_byte"]
    assert all(number.n == 3 for number in found)


def texts(n: int, seed: int) -> list[str]:
    """Of two kinds, so that long texts are also the unlikely ones."""
    draw = generator(seed)
    lengths = torch.randint(2, 14, (n,), generator=draw).tolist()
    return [
        "".join(LETTERS.symbols[min(3, i + (length > 8))] for i in torch.randint(3, (length,), generator=draw).tolist())
        for length in lengths
    ]


@pytest.mark.parametrize("name", ["corpus", "mean_of_samples", "bits_per_byte"])
def test_the_errors_are_the_spread_over_repeated_draws(name):
    found = [getattr(hf.generative_perplexity(texts(60, seed), Unigram()), name) for seed in range(200)]
    spread = statistics.stdev(number.value for number in found)
    said = statistics.mean(number.stderr for number in found)
    assert said == pytest.approx(spread, rel=0.2)  # a deviation of 200 draws is known to 5 %; 4 of these


def test_the_error_of_a_ratio_is_that_of_a_mean_where_all_texts_are_as_long():
    parts = torch.rand(50, generator=generator(0), dtype=torch.float64)
    ratio = Measurement.ratio("r", parts, torch.full((50,), 4), "")
    mean = Measurement.mean("m", parts / 4, "")
    assert (ratio.value, ratio.stderr) == (pytest.approx(mean.value), pytest.approx(mean.stderr))
    for single in (Measurement.ratio("r", parts[:1], torch.tensor([4]), ""), Measurement.mean("m", parts[:1], "")):
        assert math.isnan(single.stderr)  # unknown
        assert single.as_json()["stderr"] is None
        assert math.isnan(single.exp("e", "").stderr)
        assert "± ?" in str(single)


def test_nats_per_token_of_the_samples_own_tokenizer():
    found = hf.generative_perplexity(["aaaa", "bc"], Unigram(), tokens_per_text=2)
    assert found.nats_per_sample_token.value == pytest.approx(3.4 / 4)
    assert found.nats_per_sample_token.unit == "nats per sample token"
    found = hf.generative_perplexity(["aaaa", "bc"], Unigram(), tokens_per_text=[1, 7])
    assert found.nats_per_sample_token.value == pytest.approx(3.4 / 8)
    # the first of four judge tokens is not scored: a quarter of the sample's tokens is left out with it
    found = hf.generative_perplexity(["aaaa"], Unigram(opened=False), tokens_per_text=8)
    assert found.nats_per_sample_token.value == pytest.approx(0.3 / 6)


def test_ids_of_the_judges_own_vocabulary_are_scored_as_they_are():
    ids = torch.tensor([[0, 1, 2], [3, 3, 3]])
    found = hf.generative_perplexity(ids, Unigram(), tokenizer=Characters("abcd"))
    assert not found.retokenised
    assert found.corpus.value == pytest.approx(math.exp((3.1 + 10.5) / 6))
    assert found.nats_per_sample_token.value == pytest.approx((3.1 + 10.5) / 6)
    again = hf.generative_perplexity(["abc", "ddd"], Unigram())
    assert again.retokenised
    assert again.corpus == found.corpus


@pytest.mark.parametrize(
    ("samples", "choices", "words"),
    [
        (torch.zeros(2, 3, dtype=torch.int64), {"tokenizer": Bytes()}, "another vocabulary.*'byte'.*pass texts"),
        (torch.zeros(2, 3, dtype=torch.int64), {}, "token ids need their tokenizer"),
        (torch.full((2, 3), 4), {"tokenizer": LETTERS}, "token id 4 is out of range"),
        (torch.zeros(2, 3, dtype=torch.int64), {"tokenizer": LETTERS, "tokens_per_text": 3}, "is for texts"),
        (["ab", "cd"], {"tokens_per_text": [2, 2, 2]}, r"one for each of 2 texts, got \[2, 2, 2\]"),
        (["ab", "cd"], {"tokens_per_text": [2]}, r"one for each of 2 texts, got \[2\]"),
        (["ab", "cd"], {"tokens_per_text": 0}, "must be one number > 0"),
        (["ab", "cd"], {"tokens_per_text": [2, -1]}, "must be one number > 0"),
        (["ab"], {"tokenizer": LETTERS}, "tokenizer= is for token ids"),
        ("abab", {}, "a list of texts"),
        (["abxy"], {}, "'x'.*is not among the 4"),
        ([], {}, "there is no text to judge"),
        (["", ""], {}, "none of the 2 texts has a token to score.*at least one token"),
    ],
)
def test_a_mistake_is_one_message(samples, choices, words):
    with pytest.raises(ValueError, match=words):
        hf.generative_perplexity(samples, Unigram(), **choices)


def test_texts_too_short_to_score_are_counted():
    found = hf.generative_perplexity(["", "ab", "a", "cd"], Unigram(opened=False))
    assert (found.n, found.too_short) == (2, 2)
    assert found.corpus.value == pytest.approx(math.exp((1.0 + 3.5) / 2))
    assert "2 texts too short to score" in str(found)
    with pytest.raises(ValueError, match="two tokens, since it has no beginning-of-text token"):
        hf.generative_perplexity(["", "a"], Unigram(opened=False))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_and_infinity_of_a_judge_are_refused(bad):
    with pytest.raises(ValueError, match="returned NaN or infinity: load it in float32"):
        hf.generative_perplexity(["ab", "cd"], Unigram(nats=torch.tensor([1.0, 1.0, 1.0, bad])))


def test_a_judge_may_be_given_by_its_folder(tmp_path):
    torch.manual_seed(0)
    hf.save_pretrained(tmp_path, hf.Causal(4, hf.Size(layers=1, width=8, heads=1)), tokenizer=LETTERS, recipe=None)
    judge = hf.judge(tmp_path, context=8)
    found = hf.generative_perplexity(["abcd", "dcba"], judge)
    assert found.corpus.value == pytest.approx(4)  # a new network finds every token as likely
    assert (found.corpus.stderr, found.bits_per_byte.value) == (pytest.approx(0, abs=1e-5), pytest.approx(2))
    assert found.judge["sha256"] == judge.identity["sha256"]
    with pytest.raises(ValueError, match="pass context"):
        hf.generative_perplexity(["abcd"], tmp_path)
