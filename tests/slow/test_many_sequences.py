"""Ten thousand sequences over fifty thousand tokens, and nobody chose a batch."""

import pytest
import torch
from torch import nn

from hopflow import HOLE, Evidence, Flow, MultiMask, Uniform, Vocab, infill
from hopflow.bench.memory import PeakMemory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

VOCAB = Vocab(50_257, 50_257)


class Narrow(nn.Module):
    """The paper's vocabulary on a trunk that costs nothing."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCAB.size, 8), nn.Linear(8, VOCAB.data)

    def features(self, xt, t):
        return self.embedding(xt) + t[:, None, None]


@pytest.mark.parametrize("source", [MultiMask, Uniform])
def test_infilling_ten_thousand_sequences_needs_bounded_memory(source):
    # most positions are given, so that minutes are enough: what is held at once does not depend on how many move
    prompts = torch.zeros(10_240, 128, dtype=torch.int64)
    prompts[:, ::50] = HOLE
    with PeakMemory(torch.device("cpu")) as peak:
        out = infill(Narrow(), Flow(source(VOCAB), prediction=Evidence()), prompts, steps=2)
    VOCAB.check_data(out.tokens)
    assert peak.bytes < 1 << 30
