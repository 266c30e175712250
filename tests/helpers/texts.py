"""A text without files, for tests of training: letters that follow one another in a wheel, with slips."""

import torch

from hopflow.runs.rng import stream


class Letters:
    def __init__(self, vocab_size: int = 6, length: int = 12, rows: int = 40, padded: bool = False) -> None:
        self.vocab_size, self.length, self.rows, self.padded = vocab_size, length, rows, padded
        self.counts = torch.full((vocab_size,), 100)
        self.asked: list[tuple[int, int, int]] = []

    @property
    def identity(self):
        return {"kind": "letters", "vocab_size": self.vocab_size, "length": self.length, "rows": self.rows}

    @property
    def test(self):
        return torch.stack([self._row(-1 - number) for number in range(8)])

    @property
    def test_keep(self):
        return None

    def batch(self, seed, start, count):
        self.asked.append((seed, start, count))
        return torch.stack([self._row(self._place(seed, at)) for at in range(start, start + count)])

    def keep(self, seed, start, count):
        if not self.padded:
            return None
        ends = [3 + self._place(seed, at) % (self.length - 3) for at in range(start, start + count)]
        return torch.arange(self.length) < torch.tensor(ends)[:, None]

    def decode(self, tokens):
        return "".join(chr(97 + token) for token in tokens.tolist())

    def _place(self, seed, at):
        """Each epoch holds every row once, in an order of its own."""
        order = torch.randperm(self.rows, generator=stream(seed, "order", at // self.rows))
        return int(order[at % self.rows])

    def _row(self, number):
        generator = stream(0, "letters", number + 1000)
        slips = (torch.rand(self.length, generator=generator) < 0.1).long()
        first = torch.randint(0, self.vocab_size, (1,), generator=generator)
        return (first + torch.arange(self.length) + slips.cumsum(0)) % self.vocab_size
