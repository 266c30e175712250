"""Scores: what losses and bounds need of a prediction, in O(1) numbers per position.

Everything follows from three numbers per row of logits: the log-sum-exp over the tokens *other than xt*, the logit of
xt and the logit of x1. Leaving xt out keeps 1 - P(xt) accurate when P(xt) → 1 (1 - exp(log P) gives 0 at 1-k = 1e-7),
and makes the prediction's shift, which concerns xt alone, a scalar that is added afterwards.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import logsigmoid
from torch.utils.checkpoint import checkpoint

from .linear_rows import kernels, linear_three
from .network import Network
from .paths import PathSample
from .predictions import Prediction
from .sources import Source

Rows = Callable[..., Tensor]
"""A function of logits (n, Vd) and further columns (n,) that gives (n,) or (n, m)."""

CHUNK, GPU_CHUNK = 1 << 22, 1 << 28
"""Elements of (rows × V) that are held in float32 at once; a GPU is idle between small pieces."""


@dataclass(frozen=True, eq=False)
class Scores:
    """log P(x1), log P(xt) and log(1 - P(xt)) at every position of a sample, and a way to reach whole rows."""

    sample: PathSample
    prediction: Prediction
    source: Source
    over_rows: Callable[..., Tensor]
    """`over_rows(fn, *columns (B, L))`: fn(logits (n, Vd), *columns (n,)) on all rows in chunks; differentiable."""
    at_open: Callable[[], Tensor] | None = None
    """The three numbers (B, L, 3), right where the prediction is open; None: by `over_rows`, of all rows."""

    @classmethod
    def from_network(
        cls,
        model: Network,
        sample: PathSample,
        prediction: Prediction,
        source: Source,
        *,
        body: Network | None = None,
        count: int | None = None,
        head: Callable[[Tensor], Tensor] | None = None,
    ) -> "Scores":
        """Ask the network; where it offers features and a head, the head runs only where xt is not certain to stay.

        `body` stands for `model.features`, such as a compiled one; `count` is the number of those places, if it is
        known: to count them makes the host wait for a GPU. `head` stands for `model.head`, and runs on chunks of rows.
        """
        own = getattr(model, "head", None)
        body = body or getattr(model, "features", None)
        if not callable(own) or not callable(body):
            return cls.from_logits(model(sample.xt, sample.t), sample, prediction, source)
        rows = _open_rows(sample, prediction, source, count)
        features = body(sample.xt, sample.t)
        chunk = sample.xt.numel() if head is None else _rows(source.vocab.data, features)

        def over_rows(fn: Rows, *columns: Tensor) -> Tensor:
            if head is not None:
                return cls.from_head(features, head, sample, prediction, source).over_rows(fn, *columns)
            return cls.from_logits(own(features), sample, prediction, source).over_rows(fn, *columns)

        def at_open() -> Tensor:
            some, xt, x1 = (x.flatten(0, 1) for x in (features, sample.xt, sample.x1))
            if rows is not None:
                some, xt, x1 = (x.index_select(0, rows) for x in (some, xt, x1))
            pieces = zip(some.split(chunk), xt.split(chunk), x1.split(chunk), strict=True)
            three = torch.cat([_three_of(head or own, *piece, source) for piece in pieces])
            if rows is not None:
                three = three.new_zeros(sample.xt.numel(), 3).index_copy(0, rows, three)
            return three.unflatten(0, sample.xt.shape)

        return cls(sample, prediction, source, over_rows, at_open)

    @classmethod
    def from_logits(
        cls, logits: Float[Tensor, "B L Vd"], sample: PathSample, prediction: Prediction, source: Source
    ) -> "Scores":
        """From full logits of any float type, without a second tensor of their size."""
        source.vocab.check_logits(logits)

        def over_rows(fn: Rows, *columns: Tensor) -> Tensor:
            out: Tensor = _Rowwise.apply(fn, logits.flatten(0, 1), *(c.flatten() for c in columns))
            return out.unflatten(0, sample.xt.shape)

        return cls(sample, prediction, source, over_rows)

    @classmethod
    def from_head(
        cls,
        features: Float[Tensor, "B L D"],
        head: Callable[[Tensor], Tensor],
        sample: PathSample,
        prediction: Prediction,
        source: Source,
    ) -> "Scores":
        """From features and the output head, which runs on chunks of rows: full logits never exist."""

        def over_rows(fn: Rows, *columns: Tensor) -> Tensor:
            def run(piece: Tensor, *columns: Tensor) -> Tensor:
                logits = head(piece)
                source.vocab.check_logits(logits)
                return fn(logits, *columns)

            pieces = _split(_rows(source.vocab.data, features), features.flatten(0, 1), *(c.flatten() for c in columns))
            out = torch.cat([checkpoint(run, *piece, use_reentrant=False) for piece in pieces])
            return out.unflatten(0, sample.xt.shape)

        return cls(sample, prediction, source, over_rows)

    @property
    def log_other(self) -> Float[Tensor, "B L"]:
        """log(1 - P(xt)), as the sum of the other probabilities."""
        return torch.where(self._certain, -torch.inf, logsigmoid(self._gap))

    @property
    def log_pt(self) -> Float[Tensor, "B L"]:
        """log P(xt); -inf where xt is a mask."""
        return torch.where(self._certain, 0.0, logsigmoid(-self._gap))

    @property
    def log_p1(self) -> Float[Tensor, "B L"]:
        """log P(x1): for x1 ≠ xt its share among the others, times theirs."""
        others, _, at_x1 = self._three
        impossible = self._certain | torch.isneginf(at_x1)  # then the others may be impossible too: no -inf + inf
        elsewhere = torch.where(impossible, -torch.inf, at_x1 - others + logsigmoid(self._gap))
        return torch.where(self.sample.x1 == self.sample.xt, self.log_pt, elsewhere)

    @property
    def log_context_odds(self) -> Float[Tensor, "B L"]:
        """log Σ_{x≠xt} e^{l_x - l_xt}: the odds against xt by the logits alone, without the prediction's shift."""
        others, at_xt, _ = self._three
        return others - at_xt

    @property
    def log_share(self) -> Float[Tensor, "B L"]:
        """log of the part of x1 among the tokens other than xt, by the logits; meaningless where x1 = xt."""
        others, _, at_x1 = self._three
        return torch.where(torch.isneginf(at_x1), -torch.inf, at_x1 - others)

    @cached_property
    def _three(self) -> tuple[Tensor, ...]:
        if self.at_open is not None:
            return self.at_open().unbind(-1)
        return self.over_rows(_three, self.sample.xt, self.sample.x1).unbind(-1)

    @cached_property
    def _shift(self) -> Float[Tensor, "B L"]:
        return self.prediction.shift(self.sample.xt, self.sample.rest, self.source)

    @property
    def _certain(self) -> Tensor:
        return torch.isinf(self._shift)  # xt stays: P is δ_xt, whatever the logits say

    @cached_property
    def _gap(self) -> Float[Tensor, "B L"]:
        odds = self.log_context_odds
        return odds - torch.where(self._certain, 0.0, self._shift).to(odds.dtype)


def _three(logits: Float[Tensor, "n Vd"], xt: Int[Tensor, " n"], x1: Int[Tensor, " n"]) -> Float[Tensor, "n 3"]:
    """The log-sum-exp over the tokens other than xt, the logit of xt (-inf for a mask), the logit of x1."""
    vd = logits.shape[-1]
    logits = logits if logits.dtype == torch.float64 else logits.float()
    is_data, column = xt < vd, xt.clamp(max=vd - 1)[:, None]
    there = logits.gather(1, column)
    others = logits.scatter(1, column, torch.where(is_data[:, None], -torch.inf, there)).logsumexp(1)
    at_xt = torch.where(is_data, there[:, 0], -torch.inf)
    return torch.stack([others, at_xt, logits.gather(1, x1[:, None])[:, 0]], dim=1)


def open_places(sample: PathSample, prediction: Prediction, source: Source) -> Bool[Tensor, "B L"]:
    """Where P is not δ_xt: there only does it matter what a network says."""
    return ~torch.isinf(prediction.shift(sample.xt, sample.rest, source))


def _open_rows(
    sample: PathSample, prediction: Prediction, source: Source, count: int | None
) -> Int[Tensor, " m"] | None:
    """The open places among all B·L; None: everywhere."""
    if not prediction.stays(source):
        return None
    places = open_places(sample, prediction, source).flatten()
    return places.nonzero()[:, 0] if count is None else places.byte().argsort(descending=True, stable=True)[:count]


def _three_of(head: Any, features: Tensor, xt: Tensor, x1: Tensor, source: Source) -> Float[Tensor, "n 3"]:
    own = getattr(head, "three", None)
    if own is not None and (three := own(features, xt, x1)) is not None:
        return cast(Tensor, three)
    module = kernels(head, features)
    if module is not None:
        source.vocab.check_outputs(head.out_features)
        return linear_three(module, features, head, xt, x1)
    logits = head(features)
    source.vocab.check_logits(logits)
    rowwise: Tensor = _Rowwise.apply(_three, logits, xt, x1)
    return rowwise


def head_three(
    head: nn.Linear, features: Float[Tensor, "n D"], xt: Int[Tensor, " n"], x1: Int[Tensor, " n"]
) -> Float[Tensor, "n 3"]:
    """The log-sum-exp over the tokens other than xt, the logit of xt and that of x1, of a head over any tokens."""
    module = kernels(head, features)
    if module is not None:
        return linear_three(module, features, head, xt, x1)
    rowwise: Tensor = _Rowwise.apply(_three, head(features), xt, x1)
    return rowwise


class _Rowwise(torch.autograd.Function):
    """fn on chunks of rows; the backward pass computes a chunk again and writes its gradient where it belongs."""

    @staticmethod
    def forward(ctx: Any, fn: Rows, logits: Tensor, *columns: Tensor) -> Tensor:
        ctx.fn = fn
        ctx.save_for_backward(logits, *columns)
        return torch.cat([fn(*piece) for piece in _split(_rows(logits.shape[1], logits), logits, *columns)])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        logits, *columns = ctx.saved_tensors
        grad_logits = torch.empty_like(logits)
        for upstream, target, *piece in _split(_rows(logits.shape[1], logits), *grads, grad_logits, logits, *columns):
            with torch.enable_grad():
                rows = piece[0].detach().requires_grad_()
                value = ctx.fn(rows, *piece[1:])
            target.copy_(torch.autograd.grad(value, rows, upstream)[0])
        return None, grad_logits, *(None for _ in columns)


def _rows(width: int, where: Tensor) -> int:
    return max(1, (CHUNK if where.device.type == "cpu" else GPU_CHUNK) // width)


def _split(rows: int, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
    return list(zip(*(t.split(rows) for t in tensors), strict=True))
