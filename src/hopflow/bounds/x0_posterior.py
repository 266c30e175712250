"""p_{0|t}, the distribution of x0 given xt, from the logits of a head over all tokens.

The reversal of coupled pairs redraws tokens from it. It mirrors `Evidence`: the logits describe the context, and the
information of xt itself is added (theory.md §7). With q1, the smoothed token frequencies of the data,
logit0(xt) += log(1 + (1-k)/(k·q1(xt))). A mask, and every token at k = 0, is x0 with probability 1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from ..paths import PathSample
from ..sampling.random_draws import categorical
from ..scores import linear_head_terms
from ..sources import Source

CHUNK, GPU_CHUNK = 1 << 22, 1 << 27
"""Largest (rows × V) that is held at once on a CPU and on a GPU."""

LogProbRows = Callable[[Tensor, Tensor], Tensor]
"""(row, position) -> log p_{0|t} over all tokens."""


@dataclass(frozen=True)
class X0Posterior:
    """p_{0|t} at any positions, and the probability of all tokens other than xt at every position."""

    rows: LogProbRows
    """`draw` and `log_prob` call it for a few positions at a time."""
    other: Float[Tensor, "B L"]
    chunk: int
    """The number of positions whose distributions are held at once."""

    @classmethod
    def from_logits(cls, logits: Float[Tensor, "B L V"], xt: Int[Tensor, "B L"], source: Source) -> "X0Posterior":
        """From logits over all tokens; tokens with p0 = 0 are excluded."""
        size = source.vocab.size
        if logits.shape != (*xt.shape, size):
            raise ValueError(f"a network for x0 must return logits {(*xt.shape, size)}, got {tuple(logits.shape)}.")
        possible = source.probs_on(xt.device) > 0

        def rows(row: Tensor, position: Tensor) -> Tensor:
            found = _at_least_float32(logits[row, position].to(xt.device))
            here = possible if source.shared else possible[position]
            return torch.where(here, found, -torch.inf).log_softmax(-1)

        def other(row: Tensor, position: Tensor) -> Tensor:
            without = rows(row, position).scatter(-1, xt[row, position][:, None], -torch.inf)
            return without.logsumexp(-1).double().exp().clamp(max=1)

        chunk = _positions_per_chunk(source, xt)
        return cls(rows, torch.cat([other(*at) for at in _split_positions(xt, chunk)]).view(xt.shape), chunk)

    @classmethod
    def from_head(
        cls,
        head: Any,
        features: Float[Tensor, "B L W"],
        xt: Int[Tensor, "B L"],
        rest: Float[Tensor, "#B #L"],
        source: Source,
    ) -> "X0Posterior":
        """From an `X0Head` and its features, with the evidence of xt added."""
        linear = _restricted(head.linear, source)
        features = features.to(linear.weight.dtype)
        shift = x0_shift(xt, rest.expand(xt.shape), head.unigram.to(rest))
        certain = torch.isinf(shift) & (source.probs(xt) > 0)
        added = torch.where(torch.isinf(shift), 0.0, shift)

        def rows(row: Tensor, position: Tensor) -> Tensor:
            at = xt[row, position, None]
            with _float32_logits(features):
                found = _at_least_float32(linear(features[row, position]).to(xt.device))
            seen = found.gather(-1, at) + added[row, position, None].to(found.dtype)
            log_p = found.scatter_(-1, at, seen).log_softmax(-1)
            only_xt = torch.full_like(log_p[:1], -torch.inf).expand_as(log_p).scatter(-1, at, 0.0)
            return torch.where(certain[row, position, None], only_xt, log_p)

        def other(row: Tensor, position: Tensor) -> Tensor:
            at = xt[row, position].to(features.device)
            with _float32_logits(features):
                terms = linear_head_terms(linear, features[row, position], at, at).to(xt.device).double()
            log_odds = terms[:, 0] - terms[:, 1] - added[row, position].double()  # of the tokens other than xt
            return torch.where(certain[row, position], 0.0, log_odds.sigmoid())

        chunk = _positions_per_chunk(source, xt)
        return cls(rows, torch.cat([other(*at) for at in _split_positions(xt, chunk)]).view(xt.shape), chunk)

    def draw(self, where: Bool[Tensor, "B L"], u: Float[Tensor, "B L"]) -> Int[Tensor, " m"]:
        """Tokens at the chosen positions, by inversion at u."""
        return self._at(where, lambda log_p, at: categorical(log_p, u[at]), torch.int64)

    def log_prob(self, where: Bool[Tensor, "B L"], y: Int[Tensor, "B L"]) -> Float[Tensor, " m"]:
        """The log-probabilities of the tokens y at the chosen positions."""
        return self._at(where, lambda log_p, at: log_p.gather(-1, y[at][:, None])[:, 0].double(), torch.float64)

    def _at(self, where: Bool[Tensor, "B L"], fn: Callable[..., Tensor], dtype: torch.dtype) -> Tensor:
        places = zip(*(index.split(self.chunk) for index in where.nonzero(as_tuple=True)), strict=True)
        found = [fn(self.rows(*at), at) for at in places if len(at[0])]
        return torch.cat(found) if found else torch.empty(0, dtype=dtype, device=where.device)


def possible_tokens(source: Source) -> Bool[Tensor, " V"]:
    """The tokens that the source draws; raises ValueError if they differ between positions: a head has one bias."""
    possible = source.probs_on(torch.device("cpu")) > 0
    if source.shared:
        return possible
    if not bool((possible == possible[0]).all()):
        raise ValueError(
            f"predict_x0 needs a source that draws the same tokens at every position; {type(source).__name__} does "
            "not. Smooth its frequencies (of(vocab, rows, smoothing=1)), or set predict_x0=false."
        )
    return possible[0]


def _restricted(linear: nn.Linear, source: Source) -> nn.Linear:
    """The layer with a bias of -inf for tokens with p0 = 0; the weights are shared."""
    out, features = linear.weight.shape
    possible_tokens(source)  # refuses a source whose tokens differ between positions
    law = source.probs_on(linear.weight.device)  # kept there: a copy in every call would make the host wait for a GPU
    possible = (law if source.shared else law[0]) > 0
    bias = torch.zeros_like(linear.weight[:, 0]) if linear.bias is None else linear.bias
    found = nn.Linear(features, out, device="meta").requires_grad_(False)
    found.weight = nn.Parameter(linear.weight.detach(), requires_grad=False)
    found.bias = nn.Parameter(torch.where(possible, bias.detach(), -torch.inf), requires_grad=False)
    return found


def _float32_logits(features: Tensor) -> torch.autocast:
    """Logits in bf16 would have three digits only."""
    return torch.autocast(features.device.type, enabled=False)


def _at_least_float32(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def _positions_per_chunk(source: Source, xt: Tensor) -> int:
    return max(1, (CHUNK if xt.device.type == "cpu" else GPU_CHUNK) // source.vocab.size)


def _split_positions(xt: Int[Tensor, "B L"], chunk: int) -> list[tuple[Tensor, Tensor]]:
    """The rows and positions of all of xt, in chunks."""
    places = torch.arange(xt.numel(), device=xt.device).split(chunk)
    return [(some // xt.shape[1], some % xt.shape[1]) for some in places]


def smoothed(counts: Int[Tensor, " Vd"]) -> Float[Tensor, " Vd"]:
    """Token frequencies, mixed with a uniform distribution of weight 0.001, so that all are positive."""
    total = counts.sum().clamp(min=1)
    return (0.999 * counts.double() / total + 0.001 / len(counts)).float()


def x0_shift(
    xt: Int[Tensor, "*rows"], rest: Float[Tensor, "*#rows"], unigram: Float[Tensor, " Vd"]
) -> Float[Tensor, "*rows"]:
    """What is added to the logit of xt; inf where xt is x0 with probability 1."""
    is_data = xt < len(unigram)
    q1 = torch.where(is_data, unigram.to(rest.dtype)[xt.clamp(max=len(unigram) - 1)], 0.0)
    seen = (1 - rest) * q1  # the probability that xt has come from the data
    shift = torch.log1p(rest / torch.where(seen > 0, seen, 1.0))
    return torch.where(seen > 0, shift, torch.inf)


def x0_nats(
    head: nn.Linear, features: Float[Tensor, "B L D"], sample: PathSample, unigram: Float[Tensor, " Vd"]
) -> Float[Tensor, " B"]:
    """-log p_{0|t}(x0 | xt), summed over the positions that count: the training loss of the head."""
    xt, x0 = sample.xt, sample.x0
    three = linear_head_terms(head, features.flatten(0, 1), xt.flatten(), x0.flatten())
    others, at_xt, at_x0 = three.unflatten(0, xt.shape).unbind(-1)
    shift = x0_shift(xt, sample.rest, unigram)
    certain = torch.isinf(shift)
    gap = others - at_xt - torch.where(certain, 0.0, shift).to(others.dtype)
    log_p = torch.where(x0 == xt, logsigmoid(-gap), at_x0 - others + logsigmoid(gap))
    return sample.total(torch.where(certain, 0.0, -log_p))
