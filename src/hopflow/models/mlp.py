"""A small multilayer perceptron over complete sequences, for the tightness analyses. App. C.5 [C4]"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import one_hot

from ..vocab import Vocab


class MLP(nn.Module):
    """All tokens of xt, and t, through one hidden layer; a small `hidden` makes an imperfect network on purpose.

    With a disjoint source, t is not needed (Prop. A.3): with `time=False` the network can be tabulated.
    """

    def __init__(self, vocab: Vocab, length: int, hidden: int = 3, time: bool = True) -> None:
        super().__init__()
        self.vocab, self.length, self.time = vocab, length, time
        self.inner = nn.Linear(length * vocab.size + 1, hidden)
        self.outer = nn.Linear(hidden, length * vocab.data)

    def forward(self, xt: Int[Tensor, "B L"], t: Float[Tensor, " B"]) -> Float[Tensor, "B L Vd"]:
        tokens = one_hot(xt, self.vocab.size).to(t.dtype).flatten(1)
        used = t if self.time else torch.zeros_like(t)
        out: Tensor = self.outer(torch.tanh(self.inner(torch.cat([tokens, used[:, None]], 1))))
        return out.view(len(xt), self.length, self.vocab.data)
