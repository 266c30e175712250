"""Stream: sequences drawn step by step, so that hops can be shown while a network still works on the rest."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from types import TracebackType
from typing import Unpack

import torch
from jaxtyping import Int
from torch import Tensor

from ..flow import Flow, check_network
from ..network.network import Network, NetworkCaller
from .event_queue import Indices
from .generate import checked_options, sampling_device
from .generation import HOLE, Generation
from .options import SamplingOptions
from .sampling_run import SamplingRun, SequencePool


@dataclass(frozen=True, eq=False)
class Frame:
    """One step of one sequence: what has changed, and the counts so far. The first frame shows the noise."""

    row: int
    """Index of the sequence."""
    t: float
    position: Int[Tensor, " m"]
    """The positions whose tokens have changed."""
    before: Int[Tensor, " m"]
    after: Int[Tensor, " m"]
    tokens: Int[Tensor, " L"]
    """The sequence after this step."""
    fixed: Tensor
    """True for the tokens of the prompt."""
    final: Tensor
    """True for the tokens that no later step draws again."""
    jumps: int
    """Hops of the sequence so far."""
    calls: int
    """Network calls of the sequence so far."""
    redraws: int
    """Redraws of the sequence so far."""
    done: bool
    """Whether the sequence is complete."""


def stream(
    model: Network,
    flow: Flow,
    prompts: Int[Tensor, "n L"] | Sequence[Int[Tensor, " _"]] | None = None,
    *,
    n: int = 1,
    length: int | None = None,
    **options: Unpack[SamplingOptions],
) -> "Stream":
    """Draw like `generate(n=, length=)`, or like `infill` if there are prompts, and return each step as a `Frame`.

    The same seed gives the same tokens, hops and counts. The first frame of a sequence has t = 0, no hop, and the noise
    as its tokens; then one frame follows for each step. Steps of several sequences alternate.

    Each step is computed when its frame is requested. The stream ends and frees its memory at `close()`, at the end of
    a `with` block, after an exception, or when it is garbage-collected.

    >>> import torch, hopflow as hf
    >>> flow = hf.Flow(hf.Mask(hf.Vocab(2, masks=1)))
    >>> def network(xt, t):  # predicts token 1 almost surely
    ...     return torch.tensor([-50.0, 50.0]).expand(*xt.shape, 2)
    >>> for frame in hf.stream(network, flow, length=4, steps=4, seed=1):
    ...     print(f"{frame.t:.2f}", frame.tokens.tolist(), frame.jumps, frame.calls)
    0.00 [2, 2, 2, 2] 0 0
    0.25 [2, 1, 2, 1] 2 1
    0.50 [2, 1, 1, 1] 3 2
    0.75 [1, 1, 1, 1] 4 3
    """
    if prompts is None:
        for name, number in (("n", n), ("length", length)):
            if not isinstance(number, Integral) or number < 1:
                raise ValueError(f"{name} must be an integer ≥ 1, got {number!r}. Pass length=…, or prompts.")
        prompts = torch.full((n, int(length or 0)), HOLE)
    elif n != 1 or length is not None:
        raise ValueError("pass either prompts or n and length: prompts have a number and lengths already.")
    check_network(model, flow)
    chosen = checked_options(options)
    return Stream(
        NetworkCaller(model, flow.vocab.data, precision=chosen.get("precision", "auto")), flow, prompts, chosen
    )


class Stream(Iterator[Frame]):
    """An iterator of frames; `result` contains the sequences when it has ended."""

    def __init__(
        self,
        caller: NetworkCaller,
        flow: Flow,
        prompts: Int[Tensor, "n L"] | Sequence[Int[Tensor, " _"]],
        options: SamplingOptions,
    ) -> None:
        self._result: Generation | None = None
        self._caller, self._device = caller, sampling_device(caller.model, options.get("device"))
        with caller.inference(self._device) as precision:
            self._run: SamplingRun | None = SamplingRun(
                caller, flow, {**options, "trajectory": True}, prompts, self._device, precision
            )
        self.sampler, self.eta, self.count = self._run.sampler, self._run.eta, len(self._run.lengths)
        self._frames: Generator[list[Frame], None, Generation] | None = _frames(self._run)
        self._ready: list[Frame] = []

    def __next__(self) -> Frame:
        while not self._ready:
            if self._frames is None:
                raise StopIteration
            try:
                # per step: between two frames the caller has its own gradient mode, autocast and network mode
                with self._caller.inference(self._device):
                    self._ready = next(self._frames)[::-1]
            except StopIteration as end:
                self._result = end.value or self._result
                self.close()
                raise StopIteration from None
            except KeyboardInterrupt:
                raise  # `finished` has the complete sequences
            except BaseException:
                self.close()
                raise
        return self._ready.pop()

    @property
    def result(self) -> Generation:
        """The sequences with their hops, as `generate(…, trajectory=True)` returns them."""
        if self._result is None:
            raise ValueError("the stream has not ended: iterate to its end first.")
        return self._result

    @property
    def finished(self) -> tuple[Generation, Int[Tensor, " m"]] | None:
        """The complete sequences of an open stream and their indices; None after `close`."""
        return None if self._run is None else self._run.result()

    def close(self) -> None:
        """End the work and free its memory. A closed stream has no further frames."""
        if self._frames is not None:
            self._frames.close()
            self._frames = None  # since Python 3.13 one that was not started keeps its arguments
        if self._run is not None:
            self._run.in_flight = None  # it refers to the run in turn
        self._run = None
        self._ready = []

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_frames"):
            self.close()


def _frames(run: SamplingRun) -> Generator[list[Frame], None, Generation]:
    """The frames of each turn; returns the complete sequences."""
    calls = [0] * len(run.lengths)
    for length in sorted(set(run.lengths.tolist())):
        shown = 0  # parts of `pool.hops` that earlier frames contain
        for pool, rows, with_network in run.turns((run.lengths == length).nonzero()[:, 0]):
            hops = pool.hops[shown:] if len(pool.hops) >= shown else pool.hops  # a new pool begins with none
            shown = len(pool.hops)
            if not shown:
                left = _events_per_position(pool)
            yield _frames_of_turn(pool, rows, hops, left, run.reader.calls if with_network else 0, calls)
            del pool  # the run decides how long it lives
    return run.result()[0]


def _events_per_position(pool: SequencePool) -> Int[Tensor, "W L"]:
    """How often each position of a new pool will be drawn."""
    place = (pool.events.row * pool.tokens.shape[1] + pool.events.position).cpu()
    return place.bincount(minlength=pool.tokens.numel()).view(pool.tokens.shape)


def _frames_of_turn(
    pool: SequencePool,
    rows: Indices,
    hops: list[tuple[Tensor, ...]],
    left: Int[Tensor, "W L"],
    called: int,
    calls: list[int],
) -> list[Frame]:
    """One frame for each sequence of a turn; `left` counts the events that are left at each position."""
    none = torch.empty(0, dtype=torch.int64, device=pool.tokens.device)
    parts = zip(*(hops or [(none, none.double(), none, none, none)]), strict=True)
    row, t, position, before, after = (torch.cat(part).cpu() for part in parts)
    here = torch.from_numpy(rows).to(pool.tokens.device)
    tokens, fixed = pool.tokens[here].cpu(), pool.fixed[here].cpu()
    counts = torch.stack([pool.changes[here].sum(1), pool.redraws[here].sum(1)], 1).tolist()
    frames = []
    for i, (number, done) in enumerate(zip(pool.rows[here].tolist(), pool.queue.done(rows).tolist(), strict=True)):
        calls[number] += called
        mine = row == number
        moved = mine & (before != after)
        left[rows[i]] -= position[mine].bincount(minlength=left.shape[1])
        frames.append(
            Frame(
                row=number,
                t=float(t[mine][0]) if mine.any() else 0.0,
                position=position[moved],
                before=before[moved],
                after=after[moved],
                tokens=tokens[i],
                fixed=fixed[i],
                final=left[rows[i]] == 0,
                jumps=counts[i][0],
                calls=calls[number],
                redraws=counts[i][1],
                done=done,
            )
        )
    return frames
