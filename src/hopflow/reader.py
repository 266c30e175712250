"""Reader: what a sampler asks of a network, logits at the positions that move."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .linear_rows import WideHead
from .network import Network, home, narrow, narrowed
from .replay import Replay
from .vocab import Vocab

TOKENS, GPU_TOKENS = 1 << 13, 1 << 16
"""Tokens that a network is shown at once."""
LOGITS = 1 << 14
"""Numbers for each of these that a network without a head of its own may give: 512 MiB on a CPU, 4 GiB on a GPU."""
FEW = 4
"""Places of a sequence, on average, up to which a network is finished there alone: each reads all keys and values."""
RECORDED = 3
"""The call of a shape at which a compiled network is recorded: for fewer it does not pay."""


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

    def __init__(self, model: Network, vocab: Vocab, guidance: float = 1.0, compile: bool = False) -> None:
        if not math.isfinite(guidance):
            raise ValueError(f"guidance is a factor, 1 for none; got {guidance}")
        self.model, self.vocab, self.guidance = model, vocab, guidance
        self.calls = 1 if guidance == 1 else 2
        """Network calls each time it is read."""
        self._split = all(callable(getattr(model, name, None)) for name in ("features", "head"))
        body: Any = getattr(model, "features", None) if self._split else model
        self._halves = cast(Any, model)
        self._in_two = self._split and hasattr(model, "in_two") and self._halves.in_two()
        if self._in_two:
            dtype = narrow(next(self._halves.parameters(), torch.empty(0)))
            if compile and dtype is not None and home(model).type == "cuda":
                self._halves = narrowed(self._halves, dtype).eval()
            body = self._halves.begin
        self._body: Any = torch.compile(body, dynamic=False) if compile else body
        head: Any = getattr(model, "head", None)
        self._head = head
        if self._split and WideHead.suits(head):
            vocab.check_outputs(head.out_features)
            self._head = WideHead(head)
        self._compiled = compile
        self._most: dict[int, int] = {}
        self._replay: Replay[Any] | None = None
        self._shape, self._seen = torch.Size(), 0

    def batch(self, length: int, device: torch.device) -> int:
        """Sequences to show it at once: many tokens, but where it gives full logits no more than memory holds."""
        tokens = TOKENS if device.type == "cpu" else GPU_TOKENS
        most = tokens if self._split else min(tokens, tokens * LOGITS // self.vocab.data)
        return max(1, most // length // self.calls)

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
        model: Any = self.model
        if self._compiled:  # for one number of rows: the last, smaller batches are filled up
            count, length = inputs[0].shape
            self._most[length] = max(self._most.get(length, 0), count)
            missing = self._most[length] - count
            inputs = tuple(torch.cat([x, x[:1].expand(missing, *x.shape[1:])]) for x in inputs)
        if not self._split:
            logits = self._body(*inputs)
            self.vocab.check_logits(logits)
            return Reading(lambda row, position: logits[row, position])
        read = self._read(*inputs)
        features = self._finished(read, len(inputs[0])) if self._in_two else lambda row, position: read[row, position]

        def rows(row: Tensor, position: Tensor) -> Tensor:
            some = features(row, position)
            weights = next(model.parameters(), some).dtype
            # in the weights' own float type, also under autocast: bf16 logits keep three digits
            with torch.autocast(some.device.type, enabled=False):
                logits: Tensor = self._head(some.to(weights))
            self.vocab.check_logits(logits)
            return logits

        head = self._head
        if not (isinstance(head, WideHead) and head.draws):
            return Reading(rows)
        return Reading(rows, lambda row, position, *how: head.draw(features(row, position), *how))

    def _read(self, *inputs: Tensor) -> Any:
        """Run the network, or what comes before its head; what it gives is of use until the next call."""
        if not (self._compiled and self._in_two and inputs[0].device.type == "cuda"):
            return self._body(*inputs)
        shape = inputs[0].shape
        if self._shape != shape:
            self._shape, self._seen, self._replay = shape, 0, None
        self._seen += 1
        if self._seen < RECORDED:
            return self._body(*inputs)
        if self._replay is None:
            self._replay = Replay(self._body, *inputs)
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
