"""planned_nll: the exact likelihood of a planner's samples."""

from dataclasses import dataclass
from numbers import Integral

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..bounds.estimate import Estimate
from ..bounds.reversal_estimate import ReversalEstimate
from ..flow import Flow, check_network
from ..network.network import Network, NetworkCaller, check_labels, device_of
from ..network.network_reader import NetworkReader
from .planners import Planner, check_planner, filled_share
from .random_draws import LIKELIHOOD, RandomStreams

CHUNK, GPU_CHUNK = 1 << 22, 1 << 27
"""Largest (positions × V) that is held at once on a CPU and on a GPU, for which the host waits after each piece."""


def planned_nll(
    model: Network,
    flow: Flow,
    x1: Int[Tensor, "n L"],
    sampler: Planner,
    *,
    draws: int = 8,
    seed: int = 0,
    batch: int | None = None,
    labels: Int[Tensor, " n"] | None = None,
    characters: float | None = None,
    precision: str = "auto",
) -> Estimate:
    """-log p(x1) of each sequence, where p is the distribution of the samples that this planner draws.

    The planner's choices are repeated on x1, and -log P of its tokens is summed: as many network calls as the sampler
    makes, exact for every k and every gamma. It holds for samples without temperature, filters and guidance.

    From one mask the result is exact and nothing is random (`is_exact`). From several masks the choices depend on x0:
    p(x1) is the mean of P(x1 | x0) over the noise, and -log of its mean over `draws` random x0 is a bound in
    expectation (`is_bound`), which falls to the exact value as `draws` grows.

    labels: the label of each sequence, for a network with labels: the likelihood is p(x1 | label).
    characters: mean number of characters of a sequence, needed for bits per character.
    batch: sequences per network call; a value that suits the device by default. It does not change the result.

    >>> import torch, hopflow as hf
    >>> flow = hf.Flow(hf.Mask(hf.Vocab(2, masks=1)))
    >>> def network(xt, t):  # a model that predicts both tokens with probability 1/2
    ...     return torch.zeros(*xt.shape, 2)
    >>> print(hf.planned_nll(network, flow, torch.tensor([[0, 1, 1], [1, 0, 1]]), hf.Confidence(2)))
    planned: ppl 2 ± 0 (2.0794 ± 0 nats per sequence of 3), n=2, eta=0, exact
    """
    check_network(model, flow)
    _check(flow, x1, sampler, draws, batch)
    check_labels(model, labels, len(x1))
    exact, device = flow.source.constant, device_of(model)
    count, length = 1 if exact else draws, x1.shape[1]
    replay = _Replay.of(model, flow, sampler, precision)
    streams = RandomStreams(seed, range(len(x1)), LIKELIHOOD)
    x0 = flow.source.at(streams.uniform(count, length)).flatten(0, 1)
    rows = x1.cpu().repeat_interleave(count, 0)
    own = None if labels is None else labels.cpu().repeat_interleave(count, 0)
    with replay.caller.inference(device) as dtype:
        size = batch or replay.reader.batch_size(length, device)
        parts = [part.split(size) for part in (rows, x0, *(() if own is None else (own,)))]
        found = [replay(*(part.to(device) for part in row)) for row in zip(*parts, strict=True)]
        log_p = torch.cat(found).view(-1, count)
    if bool(log_p.isnan().any()):
        raise ValueError("the network returned NaN: check its weights and its inputs.")
    what = {"quantity": "planned", "length": length, "eta": 0.0, "calls": round(replay.calls / len(x1))}
    what |= {"dtype": replay.dtype if dtype == "unknown" else dtype, "characters": characters}
    if exact:
        return Estimate.exact(-log_p[:, 0], **what)
    return ReversalEstimate.of_weights(log_p, is_bound=True, **what).plain


def _check(flow: Flow, x1: object, sampler: object, draws: int, batch: int | None) -> None:
    """Raise ValueError if the likelihood does not exist or an argument is wrong."""
    check_planner(sampler, flow)
    flow.vocab.check_ids(x1, "(n, L)")
    assert isinstance(x1, Tensor)
    if x1.numel() == 0:
        raise ValueError(f"x1 must contain at least one token, got shape {tuple(x1.shape)}.")
    flow.vocab.check_data(x1)
    flow.schedule.check_length(x1.shape[1])
    for name, value, least in (("draws", draws, 2), ("batch", batch, 1)):
        if value is not None and not (isinstance(value, Integral) and value >= least):
            raise ValueError(f"{name} must be an integer ≥ {least}, got {value!r}.")


@dataclass
class _Replay:
    """Repeats the choices of a planner on given sequences."""

    caller: NetworkCaller
    reader: NetworkReader
    planner: Planner
    at_once: int
    """Positions whose logits fit into memory."""
    calls: int = 0
    """Network calls so far, counted per sequence."""
    dtype: str = "unknown"
    """Float type of the logits at the last call."""

    @classmethod
    def of(cls, model: Network, flow: Flow, planner: Planner, precision: str) -> "_Replay":
        caller = NetworkCaller(model, flow.vocab.data, precision=precision)
        chunk = CHUNK if caller.device.type == "cpu" else GPU_CHUNK
        return cls(caller, NetworkReader(caller), planner, max(1, chunk // flow.vocab.data))

    def __call__(
        self, x1: Int[Tensor, "B L"], x0: Int[Tensor, "B L"], labels: Int[Tensor, " B"] | None = None
    ) -> Float[Tensor, " B"]:
        """log P(x1 | x0) of each sequence."""
        log_p = torch.zeros(len(x1), dtype=torch.float64)
        xt, free = x0.clone(), torch.ones(x1.shape, dtype=torch.bool)
        while len(rows := free.any(1).nonzero()[:, 0]):
            at = rows.to(x1.device)
            gain, chosen = self._call(x1[at], xt[at], free[rows], None if labels is None else labels[at])
            log_p[rows] += gain
            xt[at] = torch.where(chosen.to(x1.device), x1[at], xt[at])
            free[rows] &= ~chosen
        return log_p

    def _call(
        self,
        x1: Int[Tensor, "b L"],
        xt: Int[Tensor, "b L"],
        free: Bool[Tensor, "b L"],
        labels: Int[Tensor, " b"] | None,
    ) -> tuple[Float[Tensor, " b"], Bool[Tensor, "b L"]]:
        """The positions that are filled after one network call, and the sum of log P of their tokens."""
        read = self.reader.read(xt, filled_share(free).to(x1.device, self.caller.time_dtype), xt, labels)
        self.calls += len(xt)

        def logits(place: Tensor, position: Tensor) -> Tensor:
            return read.logits(place.to(x1.device), position.to(x1.device))

        chosen, gain = self.planner.choose_by(logits, free, self.at_once), torch.zeros(len(x1), dtype=torch.float64)
        parts = zip(*(index.split(self.at_once) for index in chosen.nonzero(as_tuple=True)), strict=True)
        for place, position in parts:
            found = logits(place, position)
            self.dtype = str(found.dtype).removeprefix("torch.")
            token = x1[place.to(x1.device), position.to(x1.device)][:, None]
            found = found if found.dtype == torch.float64 else found.float()
            gain.index_add_(0, place, found.log_softmax(-1).gather(1, token)[:, 0].cpu().double())
        return gain, chosen
