"""Reader: what a sampler asks of a network, logits at the positions that move."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .gpu import WORKS
from .heads import head_of
from .linear_rows import WideHead
from .network import Network, has_head, home, narrow, narrowed
from .replay import Replay
from .vocab import Vocab

TOKENS, GPU_TOKENS = 1 << 13, 1 << 16
"""Tokens that a network is shown at once."""
LOGITS = 1 << 14
"""Numbers for each of these that a network without a head of its own may give: 512 MiB on a CPU, 4 GiB on a GPU."""
FEW = 4
"""Places of a sequence, on average, up to which a network is finished there alone: each reads all keys and values."""
RECORDED = 3
"""The call of a shape at which a network on a GPU is recorded: for fewer it does not pay."""
PAYS = 4096
"""Calls on a GPU from which `auto` compiles: that takes most of a minute, and saves some milliseconds of each call."""


def batch_size(model: Network, vocab: Vocab, length: int, device: torch.device) -> int:
    """Sequences to show a network at once: many tokens, but where it gives full logits no more than memory holds."""
    tokens = TOKENS if device.type == "cpu" else GPU_TOKENS
    most = tokens if has_head(model) else min(tokens, tokens * LOGITS // vocab.data)
    return max(1, most // length)


@dataclass(frozen=True)
class Reading:
    """What a network says of one batch."""

    logits: Callable[[Tensor, Tensor], Tensor]
    """Of (row, position), row by row."""
    draw: Callable[..., tuple[Tensor, Tensor] | None] = lambda *_: None
    """Of (row, position, xt, shift, u): tokens drawn from the softmax of the logits, shifted at xt, and whether all is
    sound; None where that has no way of its own."""


class Reader:
    """A network's logits, at the positions that are asked for only.

    With `guidance` g it is asked twice: as things stand, and with label and prompt dropped, which for a label means -1
    and for a prompt noise in its place. Logits are then dropped + g·(given - dropped).
    """

    def __init__(self, model: Network, vocab: Vocab, guidance: float = 1.0, compile: bool | str = False) -> None:
        if not math.isfinite(guidance):
            raise ValueError(f"guidance is a factor, 1 for none; got {guidance}")
        if compile not in (True, False, "auto"):
            raise ValueError(f"compile must be True, False or 'auto'; got {compile!r}")
        self.model, self.vocab, self.guidance = model, vocab, guidance
        self.calls = 1 if guidance == 1 else 2
        """Network calls each time it is read."""
        self._gpu = home(model).type == "cuda"
        self._split = has_head(model)
        self._halves = cast(Any, model)
        self._in_two = self._split and hasattr(model, "in_two") and self._halves.in_two()
        self._records = self._gpu and self._in_two
        """Calls of one shape are started as one: what a host needs for the kernels is longer than a GPU needs."""
        if self._records and (dtype := narrow(next(self._halves.parameters(), torch.empty(0)))) is not None:
            self._halves = narrowed(self._halves, dtype).eval()
        self._body: Any = self._halves.begin if self._in_two else self._halves.features if self._split else model
        self._head = head_of(model, vocab) if self._split else None
        self._asked, self._compiled = compile, compile is True
        self._most: dict[int, int] = {}
        self._replay: Replay[Any] | None = None
        self._shape, self._seen = torch.Size(), 0

    def expect(self, calls: int) -> None:
        """So many calls of one length lie ahead: whether `auto` compiles for them."""
        self._compiled = self._asked is True or (self._asked == "auto" and self._gpu and WORKS and calls >= PAYS)
        self._seen, self._replay = 0, None

    @cached_property
    def _compiled_body(self) -> Any:
        return torch.compile(self._body, dynamic=False)

    def batch(self, length: int, device: torch.device) -> int:
        """Sequences to show it at once."""
        return max(1, batch_size(self.model, self.vocab, length, device) // self.calls)

    def read(
        self, xt: Int[Tensor, "B L"], t: Float[Tensor, " B"], dropped: Int[Tensor, "B L"], labels: Tensor | None
    ) -> Reading:
        """Run the network; what is read is of use until the next reading."""
        given = () if labels is None else (labels,)
        if self.calls == 1:
            return self._rows(xt, t, *given)
        both = tuple(torch.cat([label, torch.full_like(label, -1)]) for label in given)
        rows = self._rows(torch.cat([xt, dropped]), torch.cat([t, t]), *both)

        def guided(row: Tensor, position: Tensor) -> Tensor:
            twice = torch.cat([row, row + len(xt)]), torch.cat([position, position])
            logits = rows.logits(*twice)
            with_, without = logits.to(torch.promote_types(logits.dtype, torch.float32)).chunk(2)
            led = without + self.guidance * (with_ - without)
            return torch.where(with_.isinf() | without.isinf(), with_, led)  # what is impossible stays so

        return Reading(guided)

    def _rows(self, *inputs: Tensor) -> Reading:
        if self._compiled or self._records:  # for one number of rows: the last, smaller batches are filled up
            count, length = inputs[0].shape
            self._most[length] = max(self._most.get(length, 0), count)
            missing = self._most[length] - count
            inputs = tuple(torch.cat([x, x[:1].expand(missing, *x.shape[1:])]) for x in inputs)
        if not self._split:
            logits = self._read(*inputs)
            self.vocab.check_logits(logits)
            return Reading(lambda row, position: logits[row, position])
        read, head = self._read(*inputs), self._head
        assert head is not None
        features = self._finished(read, len(inputs[0])) if self._in_two else lambda row, position: read[row, position]

        def rows(row: Tensor, position: Tensor) -> Tensor:
            return head(features(row, position))

        if not (isinstance(head, WideHead) and head.draws):
            return Reading(rows)
        return Reading(rows, lambda row, position, *how: head.draw(features(row, position), *how))

    def _read(self, *inputs: Tensor) -> Any:
        """Run the network, or what comes before its head; what it gives is of use until the next call."""
        body = self._compiled_body if self._compiled else self._body
        if not self._records:
            return body(*inputs)
        shape = inputs[0].shape
        if self._shape != shape:
            self._shape, self._seen, self._replay = shape, 0, None
        self._seen += 1
        if self._seen < RECORDED:
            return body(*inputs)
        if self._replay is None:
            self._replay = Replay(body, *inputs)
        return self._replay(*inputs)

    def _finished(self, begun: Any, count: int) -> Callable[[Tensor, Tensor], Tensor]:
        """Features at the places that are asked for; at all of them, once there are many."""
        everywhere: list[Tensor] = []
        left = FEW * count

        def features(row: Tensor, position: Tensor) -> Tensor:
            nonlocal left
            left -= len(row)
            if left >= 0:
                some: Tensor = self._halves.finish(begun, row, position)
                return some
            if not everywhere:
                everywhere.append(self._halves.finish_all(begun))
            return everywhere[0][row, position]

        return features
