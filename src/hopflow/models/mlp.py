"""A small multilayer perceptron over whole sequences, for the tightness analyses. App. C.5 [C4]"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import one_hot

from ..vocab import Vocab


class MLP(nn.Module):
    """All tokens of xt, and t, through one hidden layer; a narrow one makes an imperfect network on purpose.

    A disjoint source needs no clock (Prop. A.3); without one the network can be tabulated.
    """

    def __init__(self, vocab: Vocab, length: int, hidden: int = 3, clock: bool = True) -> None:
        super().__init__()
        self.vocab, self.length, self.clock = vocab, length, clock
        self.inner = nn.Linear(length * vocab.size + 1, hidden)
        self.outer = nn.Linear(hidden, length * vocab.data)

    def forward(self, xt: Int[Tensor, "B L"], t: Float[Tensor, " B"]) -> Float[Tensor, "B L Vd"]:
        tokens = one_hot(xt, self.vocab.size).to(t.dtype).flatten(1)
        time = t if self.clock else torch.zeros_like(t)
        out: Tensor = self.outer(torch.tanh(self.inner(torch.cat([tokens, time[:, None]], 1))))
        return out.view(len(xt), self.length, self.vocab.data)
