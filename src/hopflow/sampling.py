"""Sampling: from source to text, at the cost of the jumps.

A sampler draws the events of each sequence up front. What is left is a queue of turns: the sequences with the most
turns left go into the next batch, each with its own time; the network's trunk runs once for all of them, its head only
at the positions that move. Random numbers belong to sequences, so that batches change nothing but the time it takes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from itertools import count
from numbers import Integral
from typing import TypedDict, Unpack, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from .categorical import categorical
from .filters import Filter
from .flow import Flow
from .generation import HOLE, Generation, Hops
from .hints import did_you_mean
from .later import Later
from .network import Network, clock_dtype, home, resting
from .noise import Noise
from .precision import computing
from .reader import Reader, Reading
from .samplers import Euler, Events, Sampler
from .turns import Indices, Turns
from .velocities import Eta, still_noise

WAVE = 4
"""Batches of sequences whose events are drawn together; among these, most batches can be filled to the last place."""
LOOK = 64
"""Calls between two looks for NaN; what one sees is read at the next, and no GPU waits for it."""
CHUNK, GPU_CHUNK = 1 << 22, 1 << 27
"""Numbers of (rows × V) that are held at once; a GPU is idle between small pieces."""


class How(TypedDict, total=False):
    """How sequences are drawn; every key has a default."""

    steps: int
    """Euler steps, 32 unless said."""
    sampler: Sampler
    """Another sampler, or Euler on another grid; in place of `steps`."""
    eta: Eta
    """0 hops as seldom as the coupling allows; 1 keeps correcting, and is what b1 bounds."""
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    """Of `Filter`."""
    labels: Int[Tensor, " n"]
    """A third argument for the network, one number per sequence."""
    guidance: float
    """Logits are moved from those without label and prompt by this factor; 1 leaves them, and 2 goes twice as far."""
    trajectory: bool
    """Keep every hop."""
    seed: int
    batch: int
    """Sequences that the network sees at once."""
    precision: str
    """auto, float32 or bf16: what the network computes in, up to its head. `auto` is bf16 on a GPU that has it."""
    compile: bool | str
    """True, False or auto: compile the network first, once per length. `auto` does so on a GPU if thousands of calls
    lie ahead. Of a ninth length in one process torch compiles nothing more, and warns."""
    draw: Callable[[Tensor, Tensor], Tensor]
    """How a token is drawn from log-probabilities and a uniform number; `gumbel32` is what most code does."""
    device: torch.device | str
    """Where the network's weights are, unless said."""
    progress: Callable[[int, int], None]
    """Told how many sequences are done, of how many."""


def generate(model: Network, flow: Flow, *, n: int, length: int, **how: Unpack[How]) -> Generation:
    """Draw n sequences, by default with 32 Euler steps and η = 0, which hops as seldom as the coupling allows.

    Everything in `How` may be said; a seed means the same numbers on every device. On a GPU the network runs in
    bfloat16, its head and the draws in float32, unless `precision` or autocast of the caller says otherwise.
    """
    if not all(isinstance(number, Integral) and number >= 1 for number in (n, length)):
        raise ValueError(f"generate needs whole numbers, n ≥ 1 and length ≥ 1; got n={n!r}, length={length!r}")
    return infill(model, flow, torch.full((n, length), HOLE), **how)


def infill(
    model: Network, flow: Flow, prompts: Int[Tensor, "n L"] | Sequence[Int[Tensor, " _"]], **how: Unpack[How]
) -> Generation:
    """Fill the holes (HOLE, -1) of prompts, which may be of different lengths; every other token stays.

    The network sees the prompt from the start. One that was trained from a disjoint source knows that a data token is
    right; with other sources it may take early tokens of a prompt for noise.

    Ctrl-C raises `Unfinished`, which holds the sequences that were through by then.
    """
    chosen = _chosen(how)
    device = _place(model, chosen.get("device"))
    with resting(model), computing(model, device, chosen.get("precision", "auto")) as precision:
        run = _Run(model, flow, chosen, prompts, device, precision)
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
    """Ctrl-C while sequences were drawn; those that were finished are `drawn`, and `rows` says which they are."""

    def __init__(self, drawn: Generation, rows: Int[Tensor, " m"], count: int) -> None:
        super().__init__(drawn, rows, count)
        self.drawn, self.rows, self.count = drawn, rows, count

    def __str__(self) -> str:
        return f"{len(self.rows):,} of {self.count:,} sequences were drawn; this error's `drawn` holds them"


def _chosen(keys: How) -> How:
    """What was said; None says nothing, and a word that is not known is refused."""
    for key in keys:
        if key not in How.__annotations__:
            hint = did_you_mean(key, How.__annotations__) or f"known are {', '.join(How.__annotations__)}"
            raise ValueError(f"{key!r} says nothing about how to draw; {hint}")
    return cast(How, {key: value for key, value in keys.items() if value is not None})


def _place(model: Network, asked: torch.device | str | None) -> torch.device:
    """Where sequences are drawn: beside the network's weights, which nobody moves."""
    here = home(model)
    there = torch.device(asked or here)
    if not (isinstance(model, nn.Module) and next(model.parameters(), None) is not None):
        return there
    if there.type != here.type or (None not in (there.index, here.index) and there.index != here.index):
        raise ValueError(f"the network is on {here}, not on {there}: model.to({str(there)!r}) moves it")
    return here


class _Run:
    """What all waves share: the choices, the network, and the results so far."""

    def __init__(
        self,
        model: Network,
        flow: Flow,
        how: How,
        prompts: Sequence[Tensor] | Tensor,
        device: torch.device,
        precision: str,
    ) -> None:
        if "steps" in how and "sampler" in how:
            raise ValueError(f"pass steps={how['steps']}, which means Euler, or sampler={how['sampler']}, not both")
        self.flow, self.eta, self.seed = flow, how.get("eta", 0.0), how.get("seed", 0)
        self.sampler = how["sampler"] if "sampler" in how else Euler(how.get("steps", 32))
        self.filter = Filter(how.get("temperature", 1.0), how.get("top_k"), how.get("top_p"), how.get("min_p"))
        self.draw, self.batch = how.get("draw", categorical), how.get("batch")
        self.plain = self.draw is categorical and self.filter == Filter()
        """Tokens are drawn from the prediction as it is."""
        self.device, self.precision = device, precision
        self.reader = Reader(model, flow.vocab, how.get("guidance", 1.0), how.get("compile", "auto"))
        self.clock = clock_dtype(model)
        self.labels, self.keeps = how.get("labels"), how.get("trajectory", False)
        self.progress = how.get("progress", lambda done, count: None)
        whole = isinstance(prompts, Tensor)
        for some in [prompts] if whole else prompts:
            flow.vocab.check_ids(some, "(n, L)" if whole else "(L)")
        self.prompts = prompts.cpu() if isinstance(prompts, Tensor) else [prompt.cpu() for prompt in prompts]
        self.lengths = torch.tensor([len(prompt) for prompt in prompts])
        self._check()
        shape = (len(prompts), int(self.lengths.max()))
        self.tokens, self.x0 = (torch.full(shape, HOLE) for _ in range(2))
        self.fixed = torch.zeros(shape, dtype=torch.bool)
        self.redraws, self.changes = (torch.zeros(shape, dtype=torch.int64) for _ in range(2))
        self.calls = torch.zeros(len(prompts), dtype=torch.int64)
        self.under_way: _Wave | None = None
        """A wave that a GPU may still be at work on, all of whose turns were given."""
        self.kept: dict[int, tuple[Tensor, list[tuple[Tensor, ...]]]] = {}
        """Rows and hops of the waves that are through, by their first row: none is there twice."""
        self.done = 0

    def fill(self, rows: Int[Tensor, " m"]) -> None:
        """All sequences of one length, wave by wave."""
        length = int(self.lengths[rows[0]])
        batch = self.batch or self.reader.batch(length, self.device)
        for some in rows.split(WAVE * batch):
            # its events are drawn while a GPU still works on the wave before
            wave = _Wave(self, some, torch.stack([self.prompts[row] for row in some.tolist()]))
            if some[0] == rows[0]:  # the first wave is like all of them
                self.reader.expect(int(wave.turns.calls.mean() * len(rows) / min(batch, len(rows))))
            self._keep()
            wave.go(batch)
            self.done += len(some)
            self.under_way = wave
        self._keep()

    def _keep(self) -> None:
        """What came of the wave before, once it is there."""
        if self.under_way is None:
            return
        wave = self.under_way
        some, length = wave.rows.cpu(), wave.tokens.shape[1]
        wave.check(Later(wave.sound))
        for name in ("x0", "fixed", "tokens", "redraws", "changes"):
            getattr(self, name)[some, :length] = getattr(wave, name).cpu()
        self.calls[some] = torch.from_numpy(wave.turns.calls) * self.reader.calls
        self.kept[int(some[0])] = some, wave.hops
        self.under_way = None

    def result(self) -> tuple[Generation, Int[Tensor, " m"]]:
        """The sequences that are through, and which they are."""
        self._keep()
        none = torch.empty(0, dtype=torch.int64)
        rows = torch.cat([none, *(some for some, _ in self.kept.values())]).sort().values
        names = ("tokens", "x0", "fixed", "lengths", "calls", "redraws", "changes")
        out = Generation(
            **{name: getattr(self, name)[rows].to(self.device) for name in names},
            sampler=self.sampler,
            eta=self.eta,
            filter=self.filter,
            draw=getattr(self.draw, "__name__", repr(self.draw)),
            hops=self._hops(rows) if self.keeps else None,
            precision=self.precision,
        )
        return out, rows

    def _hops(self, rows: Int[Tensor, " m"]) -> Hops:
        none = torch.empty(0, dtype=torch.int64, device=self.device)
        hops = [hop for _, some in self.kept.values() for hop in some] or [(none, none.float(), none, none, none)]
        row, t, position, before, after = (torch.cat(parts) for parts in zip(*hops, strict=True))
        real = (before != after).nonzero()[:, 0]
        order = real[t[real].argsort(stable=True)]
        place = torch.searchsorted(rows.to(row.device), row[order])
        return Hops(place, t[order], position[order], before[order], after[order])

    def _check(self) -> None:
        if not len(self.lengths) or int(self.lengths.min()) < 1:
            raise ValueError("a prompt has at least one token or hole; got none")
        if self.batch is not None and self.batch < 1:
            raise ValueError(f"batch is a number of sequences, at least 1; got {self.batch}")
        holes = 0
        for prompt in [self.prompts] if isinstance(self.prompts, Tensor) else self.prompts:
            self.flow.vocab.check_data(prompt.clamp(min=0))
            if int(prompt.min()) < HOLE:
                raise ValueError(f"a prompt holds data tokens, and {HOLE} for a hole; got {int(prompt.min())}")
            holes += int((prompt == HOLE).sum())
        if not holes:
            raise ValueError(f"there is nothing to draw: no prompt has a hole ({HOLE})")
        if self.labels is not None and len(self.labels) != len(self.lengths):
            raise ValueError(f"there are {len(self.labels)} labels for {len(self.lengths)} sequences")
        if self.reader.calls > 1 and self.labels is None and holes == int(self.lengths.sum()):
            raise ValueError("guidance leads towards a label or a prompt, and there is none: pass labels, or infill")


class _Wave:
    """Some sequences of one length: where they are, and the events that are left."""

    def __init__(self, run: _Run, rows: Int[Tensor, " W"], prompt: Int[Tensor, "W L"]) -> None:
        self.run, flow = run, run.flow
        noise = Noise(run.seed, rows.tolist())
        source, fixed = flow.source.at(noise.uniform(prompt.shape[1])), prompt != HOLE
        events = run.sampler.events(flow, run.eta, ~fixed, noise)
        # where data stays, what is proposed replaces a mask, of which no network needs to say that it is noise
        self.blind = flow.prediction.stays(flow.source)
        self.turns = Turns(events, len(rows), events.corrects & self.blind)
        self.corrects = events.corrects[self.turns.order].numpy()
        self.events = Events(*(self._sent(f.name, getattr(events, f.name)) for f in fields(Events)))
        self.rows, self.fixed, self.source = (x.to(run.device) for x in (rows, fixed, source))
        self.x0 = torch.where(self.fixed, prompt.to(run.device), self.source)
        self.tokens, self.redraws, self.changes = self.x0.clone(), torch.zeros_like(self.x0), torch.zeros_like(self.x0)
        self.labels = None if run.labels is None else run.labels.to(run.device)[self.rows]
        self.hops: list[tuple[Tensor, ...]] = []
        self.sound = torch.ones((), dtype=torch.bool, device=run.device)
        self.looked = Later(self.sound)

    def go(self, batch: int) -> None:
        """Turn by turn, until nothing is left to move."""
        asked, total = 0, int(self.turns.calls.sum())
        for call in count():
            while len(rows := self.turns.silent()):
                self._turn(rows, asks=False)
            if not len(rows := self.turns.longest(batch)):
                break
            self._turn(rows, asks=True)
            asked += len(rows)
            self.run.progress(self.run.done + len(self.rows) * asked // total, len(self.run.lengths))
            if call % LOOK == 0:
                before, self.looked = self.looked, Later(self.sound)
                self.check(before)

    def check(self, sound: Later) -> None:
        if not bool(sound.read()):
            raise ValueError("the network gave NaN: look at its weights and its inputs")

    def _turn(self, rows: Indices, asks: bool) -> None:
        """The next turn of these sequences."""
        events, place, t = self.turns.take(rows)
        read = self._ask(rows, t) if asks else None
        for proposals in (False, True):
            chosen = np.flatnonzero(self.corrects[events] == proposals)
            for part in self._parts(chosen):
                e, at = self._events(events[part]), self._there(place[part])
                before = self.tokens[e.row, e.position]
                if not proposals:
                    assert read is not None
                    after, moved = self._redrawn(read, at, before, e), torch.ones_like(before, dtype=torch.bool)
                else:
                    seen = None if read is None or self.blind else read.logits(at, e.position)
                    after, moved = self._proposed(None if seen is None else self._log_p(seen, before, e), before, e)
                self.tokens[e.row, e.position] = after
                self.redraws[e.row, e.position] += moved
                self.changes[e.row, e.position] += after != before
                if self.run.keeps:
                    self.hops.append((self.rows[e.row], e.t, e.position, before, after))

    def _ask(self, rows: Indices, t: NDArray[np.float64]) -> Reading:
        """The network's logits at places of this batch, each sequence at its own time."""
        at = self._there(rows)
        labels = None if self.labels is None else self.labels[at]
        tokens, clock = self.tokens[at], self._sent_soon(torch.from_numpy(t).to(self.run.clock))
        unprompted = torch.where(self.fixed[at], self.source[at], tokens) if self.run.reader.calls > 1 else tokens
        return self.run.reader.read(tokens, clock, unprompted, labels)

    def _log_p(self, logits: Float[Tensor, "m Vd"], xt: Int[Tensor, " m"], e: Events) -> Float[Tensor, "m Vd"]:
        """log P of the filtered context: the filter comes before the evidence of xt.  theory.md §6"""
        log_p = self.run.flow.prediction.log_probs(self.run.filter(logits), xt, e.rest, self.run.flow.source)
        self.sound &= ~torch.isnan(log_p[:, 0]).any()  # one NaN makes the whole row NaN
        return log_p

    def _redrawn(self, read: Reading, at: Tensor, before: Tensor, e: Events) -> Tensor:
        """Tokens of the prediction."""
        if self.run.plain:
            shift = self.run.flow.prediction.shift(before, e.rest, self.run.flow.source)
            certain = torch.isinf(shift)
            drawn = read.draw(at, e.position, before, torch.where(certain, 0.0, shift), e.token)
            if drawn is not None:
                self.sound &= drawn[1]
                return torch.where(certain, before, drawn[0])
        return self.run.draw(self._log_p(read.logits(at, e.position), before, e), e.token)

    def _proposed(self, log_p: Tensor | None, before: Tensor, e: Events) -> tuple[Tensor, Tensor]:
        """A token of the source, accepted with chance 1 - ρP(xt).  theory.md (F_N)"""
        source = self.run.flow.source
        fresh = source.at(e.token).to(before.device)
        if log_p is None:  # of a mask P(xt) = 0
            return fresh, torch.ones_like(before, dtype=torch.bool)
        column = before.clamp(max=source.vocab.data - 1)[:, None]
        pt = torch.where(source.vocab.is_data(before), log_p.gather(1, column)[:, 0].exp().to(e.rest), 0.0)
        rho, _ = still_noise(1 - e.rest, e.rest, source.probs(before, e.rest.dtype))
        accepted = e.accept < 1 - rho * pt
        return torch.where(accepted, fresh, before), accepted

    def _parts(self, chosen: Indices) -> Iterator[Indices]:
        size = (CHUNK if self.run.device.type == "cpu" else GPU_CHUNK) // self.run.flow.vocab.data
        for start in range(0, len(chosen), max(1, size)):
            yield chosen[start : start + max(1, size)]

    def _sent(self, name: str, values: Tensor) -> Tensor:
        """A column of the events, in order, on the device; mps has no float64, and tokens are not drawn from less."""
        ordered, lacks = values[self.turns.order], self.run.device.type == "mps"
        if lacks and name == "token":
            return ordered
        return (ordered.float() if lacks and ordered.is_floating_point() else ordered).to(self.run.device)

    def _events(self, which: Indices) -> Events:
        at = self._there(which)
        columns = (getattr(self.events, f.name) for f in fields(Events))
        return Events(*(column[at.to(column.device)] for column in columns))

    def _there(self, which: Indices) -> Int[Tensor, " m"]:
        return self._sent_soon(torch.from_numpy(which))

    def _sent_soon(self, x: Tensor) -> Tensor:
        """On the device; from page-locked memory a host need not wait for a GPU to copy."""
        return (x.pin_memory() if self.run.device.type == "cuda" else x).to(self.run.device, non_blocking=True)
