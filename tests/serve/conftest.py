"""What the tests of the page in Chromium share: the browser, and networks without training."""

import pytest
import torch
from chromium import Chromium
from commands import FOX
from page_server import ServedFlow
from page_visits import LENGTH

import hopflow as hf


@pytest.fixture(scope="module")
def browser():
    with Chromium.launched() as chromium:
        yield chromium


class Blanks(torch.nn.Module):
    """A network without training that likes blanks, so that its texts have words."""

    def __init__(self, source: hf.Source, blank: int) -> None:
        super().__init__()
        self.network = hf.Transformer(source.vocab, hf.Size(layers=1, width=16, heads=2))
        torch.nn.init.normal_(self.network.head.weight)
        self.blank = blank

    def forward(self, xt, t):
        logits = self.network(xt, t)
        logits[..., self.blank] += 4
        return logits


def served(name: str, corpus, source: hf.Source, predicted: float, seed: int) -> ServedFlow:
    torch.manual_seed(seed)
    model = Blanks(source, corpus.tokenizer.encode(" ")[0]).eval()
    return ServedFlow(name, model, hf.Flow(source), corpus.tokenizer, predicted, LENGTH)


@pytest.fixture(scope="module")
def flows(tmp_path_factory) -> list[ServedFlow]:
    """Two networks without training, over the characters of a text, with the same noise."""
    file = tmp_path_factory.mktemp("text") / "fox.txt"
    file.write_text(FOX)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOPFLOW_CACHE", str(file.parent / "cache"))
        corpus = hf.data.load(file, tokens="char", length=LENGTH)
    source = hf.BagOfWords.fit(corpus.counts)
    return [served("runs/first", corpus, source, 36.0, 0), served("runs/second", corpus, source, 30.0, 1)]


@pytest.fixture(scope="module")
def masked(flows) -> ServedFlow:
    vocab = hf.Vocab(flows[0].flow.vocab.data, masks=1)
    return served("runs/mask", flows[0], hf.Mask(vocab), LENGTH, 2)
