"""Diversity against hand-counted sequences, closed forms and plain Python."""

import math
from collections import Counter

import pytest
import torch
from toys import generator

from hopflow.evaluation.diversity import distinct, entropy, recent
from hopflow.evaluation.metrics import Samples, measure_samples


def rows(*sequences):
    return torch.tensor(sequences)


def metrics(tokens):
    return {one.quantity: one for one in measure_samples(Samples(tokens))}


def test_the_entropy_of_distinct_tokens_is_log_l_and_of_one_token_zero():
    tokens = torch.stack([torch.arange(16) * 3000, torch.full((16,), 7)])
    assert entropy(tokens).tolist() == pytest.approx([math.log(16), 0.0], abs=1e-12)
    bits, nats = (metrics(tokens)[name] for name in ("entropy_bits", "entropy_nats"))
    assert bits.value == pytest.approx(2.0)
    assert nats.value == pytest.approx(2.0 * math.log(2))
    assert bits.stderr == pytest.approx(2.0)  # of 4 and 0: their deviation, 2√2, by √2
    assert (bits.n, bits.unit, nats.unit) == (2, "bits", "nats")


def test_distinct_and_recent_tokens_are_counted_as_by_hand():
    tokens = rows([5, 6, 5, 6, 5], [1, 2, 3, 1, 2], [9, 9, 9, 9, 9])
    assert distinct(tokens, 1).tolist() == pytest.approx([2 / 5, 3 / 5, 1 / 5])
    assert distinct(tokens, 2).tolist() == pytest.approx([2 / 4, 3 / 4, 1 / 4])  # 56 65 | 12 23 31 | 99
    assert distinct(tokens, 3).tolist() == pytest.approx([2 / 3, 3 / 3, 1 / 3])
    assert distinct(tokens, 4).tolist() == pytest.approx([2 / 2, 2 / 2, 1 / 2])
    assert recent(tokens, 1).tolist() == pytest.approx([0, 0, 4 / 5])
    assert recent(tokens, 2).tolist() == pytest.approx([3 / 5, 0, 4 / 5])
    assert recent(tokens, 3).tolist() == pytest.approx([3 / 5, 2 / 5, 4 / 5])


def test_all_numbers_agree_with_plain_python_on_random_sequences():
    tokens = torch.randint(6, (20, 40), generator=generator(0)) * 8000
    for row, nats, *shares in zip(
        tokens.tolist(), entropy(tokens), *(distinct(tokens, n) for n in (1, 2, 3, 4)), recent(tokens, 8), strict=True
    ):
        counts = Counter(row)
        assert float(nats) == pytest.approx(-sum(c / 40 * math.log(c / 40) for c in counts.values()))
        for n, share in enumerate(shares[:4], 1):
            grams = [tuple(row[i : i + n]) for i in range(41 - n)]
            assert float(share) == pytest.approx(len(set(grams)) / len(grams))
        assert float(shares[4]) == pytest.approx(sum(row[i] in row[max(0, i - 8) : i] for i in range(40)) / 40)


def test_repeated_grams_are_those_that_are_not_distinct():
    found = metrics(torch.randint(5, (30, 12), generator=generator(1)))
    assert list(found)[:3] == ["entropy_bits", "entropy_nats", "distinct_1"]
    for n in (1, 2, 3, 4):
        share = found[f"distinct_{n}"]
        assert found[f"repeated_{n}"].value == pytest.approx(1 - share.value)
        assert found[f"repeated_{n}"].stderr == pytest.approx(share.stderr)
        assert share.n == 30
    assert found["recent_16"].value == pytest.approx(found["repeated_1"].value)  # 16 tokens back is the complete row


def test_a_length_of_many_grams_and_large_ids_does_not_overflow():
    tokens = torch.arange(2000)[None] + 2**40
    assert distinct(tokens, 4).tolist() == [1.0]


def test_short_sequences_leave_out_longer_grams_and_empty_ones_are_refused():
    assert [name for name in metrics(rows([1, 2, 1])) if "distinct" in name] == [f"distinct_{n}" for n in (1, 2, 3)]
    with pytest.raises(ValueError, match="at least one token"):
        Samples(torch.zeros(0, 5, dtype=torch.int64))
    with pytest.raises(ValueError, match="no 4-grams"):
        distinct(rows([1, 2, 1]), 4)
