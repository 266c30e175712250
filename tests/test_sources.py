import math
from dataclasses import dataclass

import pytest
import torch
from cases import SOURCES, VOCAB, Ramp, name
from hypothesis import given
from hypothesis import strategies as st
from toys import generator

from hopflow import sources
from hopflow.sources import BagOfWords, Mask, MultiMask, Source, Uniform
from hopflow.vocab import Vocab

each = pytest.mark.parametrize("source", SOURCES, ids=name)


@dataclass(frozen=True)
class Written(Source):
    """A source with these very probabilities."""

    p0: tuple[float, ...]

    def token_probs(self):
        return torch.tensor(self.p0)


@given(st.integers(1, 9), st.integers(1, 9))
def test_the_probabilities_of_every_source_sum_to_one(data, masks):
    vocab = Vocab(data, masks)
    for source in sources.examples(vocab):
        p0 = source.probs_on(torch.device("cpu"), torch.float64)
        assert p0.shape[-1] == vocab.size
        assert (p0 >= 0).all()
        assert p0.sum(-1).numpy() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    ("source", "disjoint", "full"),
    [
        (Mask(VOCAB), True, False),
        (MultiMask(VOCAB), True, False),
        (Uniform(VOCAB), False, True),
        (BagOfWords(VOCAB, (0.5, 0.25, 0.25)), False, True),
        (BagOfWords(VOCAB, (0.5, 0.5, 0.0)), False, False),
        (Ramp(VOCAB), False, False),
    ],
)
def test_disjoint_and_full_are_read_off_the_probabilities(source, disjoint, full):
    assert (source.disjoint, source.full) == (disjoint, full)


@pytest.mark.parametrize(
    ("source", "constant"),
    [
        (Mask(VOCAB), True),
        (MultiMask(Vocab(3, 1)), True),
        (MultiMask(VOCAB), False),
        (Uniform(VOCAB), False),
        (BagOfWords(VOCAB, (0.0, 1.0, 0.0)), True),
        (BagOfWords(VOCAB, (0.0, 1.0, 1e-30)), False),
    ],
)
def test_a_source_is_constant_where_exactly_one_token_can_be_drawn(source, constant):
    assert source.constant == constant


def test_a_source_that_puts_weight_on_every_token_is_neither_disjoint_nor_full():
    spread = Written(VOCAB, (0.2,) * 5)
    assert (spread.disjoint, spread.full) == (False, False)


def test_the_sources_are_what_the_paper_says():
    p0 = {name(s): s.token_probs().tolist() for s in SOURCES}
    assert p0["Mask"] == [0, 0, 0, 1, 0]
    assert p0["MultiMask"] == [0, 0, 0, 0.5, 0.5]
    assert p0["Uniform"] == pytest.approx([1 / 3] * 3 + [0, 0])
    assert p0["BagOfWords"] == pytest.approx([1 / 6, 2 / 6, 3 / 6, 0, 0])


@each
def test_tokens_come_as_often_as_they_should_and_those_of_probability_0_never(source):
    n = 100_000
    x0 = source.sample(n // 4, 4, generator=generator(0))
    assert x0.shape == (n // 4, 4)
    share = torch.bincount(x0.flatten(), minlength=VOCAB.size) / n
    p0 = source.token_probs()
    assert (share[p0 == 0] == 0).all()
    assert ((share - p0).abs() <= 4 * (p0 * (1 - p0) / n).sqrt()).all()


@each
@pytest.mark.parametrize("u", [0.0, 1 - 2.0**-53])
def test_the_least_and_the_greatest_random_number_land_on_tokens_of_positive_probability(source, u):
    assert (source.probs(source.at(torch.tensor([u], dtype=torch.float64))) > 0).all()


@each
def test_the_same_seed_gives_the_same_draw_and_another_seed_another(source):
    draws = [source.sample(8, 32, generator=generator(seed)) for seed in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1])
    if source.entropy > 0:
        assert not torch.equal(draws[0], draws[2])


@each
def test_drawing_leaves_the_global_random_state_alone(source):
    before = torch.get_rng_state()
    source.sample(4, 4, generator=generator(0))
    assert torch.equal(torch.get_rng_state(), before)


@each
def test_probs_looks_tokens_up(source):
    x = torch.tensor([[0, 4], [2, 3]])
    assert source.probs(x, torch.float64).tolist() == source.token_probs()[x].tolist()
    assert source.probs(x).dtype == torch.float32


@each
def test_entropy_is_that_of_the_probabilities_in_nats(source):
    p0 = source.token_probs()
    assert source.entropy == pytest.approx(-float((p0 * p0.clamp(min=1e-30).log()).sum()), abs=1e-12)


def test_entropies_of_masks_and_uniform_noise_are_logarithms_of_their_tokens():
    assert Mask(VOCAB).entropy == 0
    assert MultiMask(VOCAB).entropy == pytest.approx(math.log(2))
    assert Uniform(VOCAB).entropy == pytest.approx(math.log(3))


def test_bag_of_words_counts_training_tokens():
    tokens = torch.tensor([[0, 0, 1], [0, 2, 1]])
    assert BagOfWords.of(VOCAB, tokens).frequencies == pytest.approx((3 / 6, 2 / 6, 1 / 6))


def test_smoothing_gives_every_data_token_a_chance():
    tokens = torch.tensor([0, 0, 1])
    assert not BagOfWords.of(VOCAB, tokens).full
    smooth = BagOfWords.of(VOCAB, tokens, smoothing=1.0)
    assert smooth.full
    assert smooth.frequencies == pytest.approx((3 / 6, 2 / 6, 1 / 6))


def test_negative_smoothing_is_refused():
    with pytest.raises(ValueError, match="smoothing"):
        BagOfWords.of(VOCAB, torch.tensor([0]), smoothing=-1.0)


def test_masks_and_foreign_tokens_are_no_words():
    with pytest.raises(ValueError, match="token id 3 is out of range"):
        BagOfWords.of(VOCAB, torch.tensor([0, 3]))


def test_no_words_give_no_frequencies():
    with pytest.raises(ValueError, match="tokens is empty"):
        BagOfWords.of(VOCAB, torch.empty(0, dtype=torch.long))


@pytest.mark.parametrize("bad", [(0.5, 0.25, 0.2), (3.0, 2.0, 1.0), (1.5, -0.5, 0.0), (math.nan, 0.5, 0.5)])
def test_frequencies_that_are_no_probabilities_are_refused_with_the_sum_and_a_way_out(bad):
    with pytest.raises(
        ValueError, match=r"BagOfWords must be ≥ 0 and sum to 1; their sum is .*Divide counts by their sum"
    ):
        BagOfWords(VOCAB, bad)


def test_a_newcomers_bad_probabilities_are_refused_at_the_first_use():
    with pytest.raises(ValueError, match=r"Written must be ≥ 0 and sum to 1; their sum is 0\.8"):
        _ = Written(VOCAB, (0.2, 0.2, 0.2, 0.2, 0.0)).disjoint


@pytest.mark.parametrize("count", [2, 4])
def test_one_frequency_per_data_token_is_needed(count):
    with pytest.raises(ValueError, match=rf"one number per data token \(3\), got {count}"):
        BagOfWords(VOCAB, (1 / count,) * count)


def test_a_newcomers_source_must_speak_of_the_whole_vocabulary():
    with pytest.raises(ValueError, match=r"Written.*one probability per token, shape \(5,\), got \(3,\)"):
        Written(VOCAB, (0.5, 0.25, 0.25)).sample(1)


@pytest.mark.parametrize(
    ("kind", "way_out"), [(Mask, r"Vocab\(data=7, masks=1\)"), (MultiMask, r"Vocab\(data=7, masks=7\)")]
)
def test_a_mask_source_without_masks_names_the_vocabulary_it_needs(kind, way_out):
    with pytest.raises(ValueError, match=f"{kind.__name__} needs.*{way_out}"):
        kind(Vocab(data=7))
