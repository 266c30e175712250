from types import SimpleNamespace

import pytest
import torch
from unchecked import unchecked

from hopflow.vocab import Vocab


def test_data_tokens_come_first_then_masks():
    vocab = Vocab(data=3, masks=2)
    assert vocab.size == 5
    assert vocab.is_data(torch.arange(5)).tolist() == [True, True, True, False, False]


def test_a_vocabulary_needs_no_masks():
    assert Vocab(data=7).size == 7


@pytest.mark.parametrize(("data", "masks"), [(0, 1), (-3, 0), (2, -1)])
def test_counts_that_make_no_vocabulary_are_refused(data, masks):
    with pytest.raises(ValueError, match=f"data must be an integer ≥ 1.*data={data}, masks={masks}"):
        Vocab(data, masks)


@pytest.mark.parametrize("count", [3.5, 3.0, "3", None])
def test_counts_are_whole_numbers(count):
    with pytest.raises(ValueError, match=f"integer ≥ 0, got data={count!r}"):
        unchecked(Vocab.__post_init__)(SimpleNamespace(data=count, masks=0))


def test_every_id_of_the_vocabulary_passes_its_check():
    vocab = Vocab(data=3, masks=2)
    vocab.check_data(torch.arange(3))


@pytest.mark.parametrize("bad", [-1, 3])
def test_a_token_that_no_data_sequence_can_hold_is_named_with_the_range_and_a_likely_cause(bad):
    with pytest.raises(ValueError, match=rf"token id {bad} is out of range.*data tokens are 0 … 2.*tokenizer"):
        Vocab(data=3, masks=2).check_data(torch.tensor([[0, bad]]))


def test_no_tokens_are_no_bad_tokens():
    Vocab(data=3).check_data(torch.empty(0, 4, dtype=torch.long))


@pytest.mark.parametrize(
    "x",
    [[[1, 2]], "ab", torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64)],
    ids=["a list", "a text", "floats", "bytes", "another shape"],
)
def test_what_is_no_tensor_of_token_ids_is_refused(x):
    with pytest.raises(ValueError, match=r"int64 or int32 tensor of shape \(n, L\), got"):
        Vocab.check_ids(x, "(n, L)")
    Vocab.check_ids(torch.zeros(2, 3, dtype=torch.int32), "(n, L)")


def test_the_position_whose_probabilities_are_furthest_from_a_sum_of_1_is_named():
    p0 = torch.tensor([[0.5, 0.5], [0.5, 0.8], [0.5, 0.4]])
    with pytest.raises(ValueError, match=r"sum at position 1 is 1\.3"):
        Vocab(data=2).normalized(p0, "Mine")
