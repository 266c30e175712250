"""Generate sequences from a flow, and infill prompts."""

from collections.abc import Sequence
from numbers import Integral
from typing import Unpack, cast

import torch
from jaxtyping import Int
from torch import Tensor, nn

from ..flow import Flow, check_network
from ..network.network import Network, NetworkCaller, device_of
from ..system.hints import did_you_mean
from .generation import HOLE, Generation
from .options import SamplingOptions
from .sampling_run import SamplingRun

__all__ = ["SamplingOptions", "Unfinished", "generate", "infill"]


def generate(model: Network, flow: Flow, *, n: int, length: int, **options: Unpack[SamplingOptions]) -> Generation:
    """Draw n sequences; by default with 32 Euler steps and η = 0, which makes the fewest hops.

    `SamplingOptions` lists all keywords. A seed means the same random numbers on every device. On a GPU the network
    runs in bfloat16, its head and the draws in float32, unless `precision` or an enclosing autocast says otherwise.

    >>> import torch, hopflow as hf
    >>> flow = hf.Flow(hf.Mask(hf.Vocab(2, masks=1)))
    >>> def network(xt, t):  # predicts token 1 almost surely
    ...     return torch.tensor([-50.0, 50.0]).expand(*xt.shape, 2)
    >>> out = hf.generate(network, flow, n=2, length=4, steps=8)
    >>> out.tokens
    tensor([[1, 1, 1, 1],
            [1, 1, 1, 1]])
    >>> out.jumps
    tensor([4., 4.])
    """
    for name, number in (("n", n), ("length", length)):
        if not isinstance(number, Integral) or number < 1:
            raise ValueError(f"{name} must be an integer ≥ 1, got {number!r}.")
    return infill(model, flow, torch.full((n, length), HOLE), **options)


def infill(
    model: Network,
    flow: Flow,
    prompts: Int[Tensor, "n L"] | Sequence[Int[Tensor, " _"]],
    **options: Unpack[SamplingOptions],
) -> Generation:
    """Fill the holes (HOLE, -1) of prompts, which may have different lengths; every other token stays.

    The network sees the prompt from the start. With a disjoint source it knows that a data token is correct; with
    other sources it may take tokens of the prompt for noise at small t.

    Ctrl-C raises `Unfinished`, which contains the sequences that are complete.
    """
    check_network(model, flow)
    chosen = checked_options(options)
    device = sampling_device(model, chosen.get("device"))
    caller = NetworkCaller(model, flow.vocab.data, precision=chosen.get("precision", "auto"))
    with caller.inference(device) as precision:
        run = SamplingRun(caller, flow, chosen, prompts, device, precision)
        try:
            for length in sorted(set(run.lengths.tolist())):
                run.fill((run.lengths == length).nonzero()[:, 0])
            return run.result()[0]
        except KeyboardInterrupt:
            drawn, rows = run.result()
            if not len(rows):
                raise
            raise Unfinished(drawn, rows, len(run.lengths)) from None


class Unfinished(KeyboardInterrupt):
    """Ctrl-C during sampling: `drawn` contains the complete sequences, `rows` their indices."""

    def __init__(self, drawn: Generation, rows: Int[Tensor, " m"], count: int) -> None:
        super().__init__(drawn, rows, count)
        self.drawn, self.rows, self.count = drawn, rows, count

    def __str__(self) -> str:
        return f"{len(self.rows):,} of {self.count:,} sequences are complete; the attribute `drawn` contains them"


def checked_options(options: SamplingOptions) -> SamplingOptions:
    """The options without those that are None; raises ValueError for a name that does not exist."""
    for key in options:
        if key not in SamplingOptions.__annotations__:
            names = SamplingOptions.__annotations__
            hint = did_you_mean(key, names) or f"options are {', '.join(names)}"
            raise ValueError(f"{key!r} is not a sampling option; {hint}")
    return cast(SamplingOptions, {key: value for key, value in options.items() if value is not None})


def sampling_device(model: Network, asked: torch.device | str | None) -> torch.device:
    """The device of the network's weights; raises ValueError if another one was asked for."""
    here = device_of(model)
    try:
        there = torch.device(asked or here)
    except RuntimeError:
        raise ValueError(f"device={asked} is not a device of torch, such as cpu or cuda; leave it out.") from None
    if not (isinstance(model, nn.Module) and next(model.parameters(), None) is not None):
        return there
    if there.type != here.type or (None not in (there.index, here.index) and there.index != here.index):
        raise ValueError(f"the network is on {here}, not on {there}: call model.to({str(there)!r}) first.")
    return here
