"""Streams: the same key gives the same numbers, everywhere and always."""

import subprocess
import sys

import pytest
import torch

from hopflow.runs.rng import stream, stream_seed


@pytest.mark.parametrize(
    ("key", "seed"),
    [
        ((0, "source", 0), 5793315094243631286),
        ((0, "source", 1), 3364008976595128824),
        ((7, "coupling", 12, 3), 5490963114406687600),
        ((-1, "t"), 6524918808683468192),
    ],
)
def test_the_seed_of_a_key_never_changes(key, seed):
    assert stream_seed(*key) == seed


def test_the_numbers_of_a_key_never_change():
    numbers = torch.rand(3, generator=stream(0, "source", 0), dtype=torch.float64)
    assert numbers.tolist() == [0.863412484381053, 0.5350627500415382, 0.5783740566750456]


def test_another_process_with_another_hash_salt_draws_the_same():
    code = "from hopflow.runs.rng import stream_seed; print(stream_seed(3, 'source', 5))"
    for salt in ("1",):
        run = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": salt, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert int(run.stdout) == stream_seed(3, "source", 5)


def test_different_keys_have_different_seeds():
    keys = [(seed, purpose, i) for seed in range(5) for purpose in ("source", "coupling", "t") for i in range(200)]
    keys += [(1, "source"), (1, "source", 1, 1), (11, "source", 1), (1, "source/1")]
    assert len({stream_seed(*key) for key in keys}) == len(keys)


def test_what_a_stream_draws_does_not_depend_on_other_draws():
    expected = torch.rand(4, generator=stream(0, "source", 3))
    torch.rand(100)
    torch.rand(100, generator=stream(0, "source", 2))
    assert torch.equal(torch.rand(4, generator=stream(0, "source", 3)), expected)


def test_a_random_stream_key_must_consist_of_integers():
    with pytest.raises(TypeError):
        stream_seed(0, "t", 0.5)
