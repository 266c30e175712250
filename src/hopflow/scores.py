"""Scores: log P(x1), log P(xt) and log(1 - P(xt)) for losses and bounds, from a few numbers per position.

Everything follows from three terms per row of logits: the log-sum-exp over the tokens *other than xt*, the logit of xt
and the logit of x1. Without xt in the sum, 1 - P(xt) is accurate as P(xt) → 1 (1 - exp(log P) is 0 at 1-k = 1e-7), and
the shift of the prediction, which concerns xt only, is a scalar that is added afterwards.
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

from .kernels.fused_head import fused_score_terms, head_kernels
from .network.network import Network, NetworkCaller, check_rows
from .paths import PathSample
from .predictions import Prediction
from .sources import Source

RowFunction = Callable[..., Tensor]
"""A function of logits (n, Vd) and further columns (n,) that returns (n,) or (n, m)."""

CHUNK, GPU_CHUNK = 1 << 22, 1 << 28
"""Largest (rows × V) that is held in float32 at once on a CPU and on a GPU, which is idle between small pieces."""


@dataclass(frozen=True, eq=False)
class Scores:
    """log P(x1), log P(xt) and log(1 - P(xt)) at every position of a sample; `over_rows` computes on full rows."""

    sample: PathSample
    prediction: Prediction
    source: Source
    over_rows: Callable[..., Tensor]
    """`over_rows(fn, *columns (B, L))`: fn(logits (n, Vd), *columns (n,)) for all rows, in chunks; differentiable."""
    at_open: Callable[[], Tensor] | None = None
    """The three terms (B, L, 3), correct where xt may change; None: computed by `over_rows` for all rows."""

    @classmethod
    def from_network(
        cls,
        network: Network | NetworkCaller,
        sample: PathSample,
        prediction: Prediction,
        source: Source,
        *,
        count: int | None = None,
        features: Float[Tensor, "B L D"] | None = None,
    ) -> "Scores":
        """Call the network; if it has features and a head, the head runs only where xt may change.

        `count` is the number of those positions, if it is known: to count them, the host would wait for a GPU.
        `features` are passed if they were computed before.
        """
        caller = NetworkCaller.of(network, source.vocab.data)
        if not caller.has_head:
            return cls.from_logits(caller.model(*sample.inputs), sample, prediction, source)
        rows = None if caller.all_positions else _open_rows(sample, prediction, source, count)
        if features is None:
            features = caller.features(*sample.inputs)
        return cls._from_features(features, rows, caller, sample, prediction, source)

    @classmethod
    def _from_features(
        cls,
        features: Float[Tensor, "B L D"],
        rows: Int[Tensor, " m"] | None,
        caller: NetworkCaller,
        sample: PathSample,
        prediction: Prediction,
        source: Source,
    ) -> "Scores":
        head = caller.head
        chunk = _rows_per_chunk(source.vocab.data, features) if caller.chunks_head else sample.xt.numel()

        def over_rows(fn: RowFunction, *columns: Tensor) -> Tensor:
            if caller.chunks_head:
                return cls.from_head(features, head, sample, prediction, source).over_rows(fn, *columns)
            return cls.from_logits(head(features), sample, prediction, source).over_rows(fn, *columns)

        def at_open() -> Tensor:
            some, xt, x1 = (x.flatten(0, 1) for x in (features, sample.xt, sample.x1))
            if rows is not None:
                some, xt, x1 = (x.index_select(0, rows) for x in (some, xt, x1))
            pieces = zip(some.split(chunk), xt.split(chunk), x1.split(chunk), strict=True)
            terms = torch.cat([_head_terms(head, *piece, source) for piece in pieces])
            if rows is not None:
                terms = terms.new_zeros(sample.xt.numel(), 3).index_copy(0, rows, terms)
            return terms.unflatten(0, sample.xt.shape)

        return cls(sample, prediction, source, over_rows, at_open)

    @classmethod
    def from_logits(
        cls, logits: Float[Tensor, "B L Vd"], sample: PathSample, prediction: Prediction, source: Source
    ) -> "Scores":
        """From logits of any float type, without a second tensor of their size."""
        source.vocab.check_logits(logits)
        check_rows(logits, sample.xt)

        def over_rows(fn: RowFunction, *columns: Tensor) -> Tensor:
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
        """From features and the output head, which runs in chunks of rows, so that full logits are never stored."""

        def over_rows(fn: RowFunction, *columns: Tensor) -> Tensor:
            def run(piece: Tensor, *columns: Tensor) -> Tensor:
                logits = head(piece)
                source.vocab.check_logits(logits)
                return fn(logits, *columns)

            pieces = _split(
                _rows_per_chunk(source.vocab.data, features), features.flatten(0, 1), *(c.flatten() for c in columns)
            )
            out = torch.cat([checkpoint(run, *piece, use_reentrant=False) for piece in pieces])
            return out.unflatten(0, sample.xt.shape)

        return cls(sample, prediction, source, over_rows)

    @property
    def log_other(self) -> Float[Tensor, "B L"]:
        """log(1 - P(xt)), computed as the sum of the other probabilities."""
        return torch.where(self._certain, -torch.inf, logsigmoid(self._gap))

    @property
    def log_pt(self) -> Float[Tensor, "B L"]:
        """log P(xt); -inf where xt is a mask."""
        return torch.where(self._certain, 0.0, logsigmoid(-self._gap))

    @property
    def log_p1(self) -> Float[Tensor, "B L"]:
        """log P(x1); for x1 ≠ xt, log(1 - P(xt)) plus its log-probability among the tokens other than xt."""
        others, _, at_x1 = self._terms
        # then the sum of the others may be -inf, too: avoid -inf + inf
        impossible = self._certain | torch.isneginf(at_x1)
        elsewhere = torch.where(impossible, -torch.inf, at_x1 - others + logsigmoid(self._gap))
        return torch.where(self.sample.x1 == self.sample.xt, self.log_pt, elsewhere)

    @property
    def log_context_odds(self) -> Float[Tensor, "B L"]:
        """log Σ_{x≠xt} e^{l_x - l_xt}, the odds against xt by the logits, without the shift of the prediction."""
        others, at_xt, _ = self._terms
        return others - at_xt

    @property
    def log_share(self) -> Float[Tensor, "B L"]:
        """The log-probability of x1 among the tokens other than xt, by the logits; undefined where x1 = xt."""
        others, _, at_x1 = self._terms
        return torch.where(torch.isneginf(at_x1), -torch.inf, at_x1 - others)

    @cached_property
    def _terms(self) -> tuple[Tensor, ...]:
        if self.at_open is not None:
            return self.at_open().unbind(-1)
        return self.over_rows(_terms, self.sample.xt, self.sample.x1).unbind(-1)

    @cached_property
    def _shift(self) -> Float[Tensor, "B L"]:
        return self.prediction.shift(self.sample.xt, self.sample.rest, self.source)

    @property
    def _certain(self) -> Tensor:
        return torch.isinf(self._shift)  # xt stays: P is δ_xt for all logits

    @cached_property
    def _gap(self) -> Float[Tensor, "B L"]:
        odds = self.log_context_odds
        return odds - torch.where(self._certain, 0.0, self._shift).to(odds.dtype)


def _terms(logits: Float[Tensor, "n Vd"], xt: Int[Tensor, " n"], x1: Int[Tensor, " n"]) -> Float[Tensor, "n 3"]:
    """The log-sum-exp over the tokens other than xt, the logit of xt (-inf for a mask) and the logit of x1."""
    vd = logits.shape[-1]
    logits = logits if logits.dtype == torch.float64 else logits.float()
    is_data, column = xt < vd, xt.clamp(max=vd - 1)[:, None]
    there = logits.gather(1, column)
    others = logits.scatter(1, column, torch.where(is_data[:, None], -torch.inf, there)).logsumexp(1)
    at_xt = torch.where(is_data, there[:, 0], -torch.inf)
    return torch.stack([others, at_xt, logits.gather(1, x1[:, None])[:, 0]], dim=1)


def open_positions(sample: PathSample, prediction: Prediction, source: Source) -> Bool[Tensor, "B L"]:
    """Where P is not δ_xt; elsewhere the network does not matter."""
    return ~torch.isinf(prediction.shift(sample.xt, sample.rest, source))


def _open_rows(
    sample: PathSample, prediction: Prediction, source: Source, count: int | None
) -> Int[Tensor, " m"] | None:
    """The indices of the open positions among all B·L; None means all."""
    if not prediction.keeps_data_tokens(source):
        return None
    positions = open_positions(sample, prediction, source).flatten()
    return (
        positions.nonzero()[:, 0] if count is None else positions.byte().argsort(descending=True, stable=True)[:count]
    )


def _head_terms(head: Any, features: Tensor, xt: Tensor, x1: Tensor, source: Source) -> Float[Tensor, "n 3"]:
    own = getattr(head, "score_terms", None)
    if own is not None and (terms := own(features, xt, x1)) is not None:
        return cast(Tensor, terms)
    module = head_kernels(head, features) if features.is_cuda else None
    if module is not None:
        source.vocab.check_outputs(head.out_features)
        return fused_score_terms(module, features, head, xt, x1)
    logits = head(features)
    source.vocab.check_logits(logits)
    rowwise: Tensor = _Rowwise.apply(_terms, logits, xt, x1)
    return rowwise


def linear_head_terms(
    head: nn.Linear, features: Float[Tensor, "n D"], xt: Int[Tensor, " n"], x1: Int[Tensor, " n"]
) -> Float[Tensor, "n 3"]:
    """The log-sum-exp over the tokens other than xt, and the logits of xt and x1, for a linear head over any tokens."""
    module = head_kernels(head, features) if features.is_cuda else None
    if module is not None:
        return fused_score_terms(module, features, head, xt, x1)
    rowwise: Tensor = _Rowwise.apply(_terms, head(features), xt, x1)
    return rowwise


class _Rowwise(torch.autograd.Function):
    """fn on chunks of rows; the backward pass recomputes each chunk and writes its gradient in place."""

    @staticmethod
    def forward(ctx: Any, fn: RowFunction, logits: Tensor, *columns: Tensor) -> Tensor:
        ctx.fn = fn
        ctx.save_for_backward(logits, *columns)
        return torch.cat([fn(*piece) for piece in _split(_rows_per_chunk(logits.shape[1], logits), logits, *columns)])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        logits, *columns = ctx.saved_tensors
        grad_logits = torch.empty_like(logits)
        for upstream, target, *piece in _split(
            _rows_per_chunk(logits.shape[1], logits), *grads, grad_logits, logits, *columns
        ):
            with torch.enable_grad():
                rows = piece[0].detach().requires_grad_()
                value = ctx.fn(rows, *piece[1:])
            target.copy_(torch.autograd.grad(value, rows, upstream)[0])
        return None, grad_logits, *(None for _ in columns)


def _rows_per_chunk(width: int, where: Tensor) -> int:
    return max(1, (CHUNK if where.device.type == "cpu" else GPU_CHUNK) // width)


def _split(rows: int, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
    return list(zip(*(t.split(rows) for t in tensors), strict=True))
