"""What every sampler and every time grid does, whoever wrote it: each family's table of examples is tested."""

from dataclasses import dataclass

import pytest
import torch
from cases import name
from toys import generator

from hopflow.flow import Flow
from hopflow.recipes.components import choose
from hopflow.sampling import planners, samplers
from hopflow.sampling.generate import generate, infill
from hopflow.sampling.generation import HOLE
from hopflow.sampling.planners import Planner
from hopflow.sampling.random_draws import RandomStreams
from hopflow.sampling.samplers import ALWAYS, Euler, EvenGrid, Events, Grid, Sampler
from hopflow.schedules import EXAMPLES as SCHEDULES
from hopflow.sources import Mask, MultiMask
from hopflow.vocab import Vocab

ROWS, LENGTH = 6, 5


@dataclass(frozen=True)
class RightToLeft(Sampler):
    """A newcomer's sampler: positions from right to left, one per call, at equally spaced times."""

    @property
    def label(self) -> str:
        return "right to left"

    def events(self, flow, eta, free, streams):
        row, position = free.nonzero().unbind(1)
        step = free.shape[1] - 1 - position
        t = step / free.shape[1]
        token = streams.uniform(free.shape[1])[row, position]
        rest = flow.schedule.rest(t)
        return Events(row, step, position, t.double(), rest.double(), torch.zeros_like(row).bool(), token, token)


@dataclass(frozen=True)
class Peaked(Planner):
    """A newcomer's planner: the position with the largest sum of squared probabilities."""

    @property
    def label(self) -> str:
        return "peaked"

    def scores(self, log_p):
        return (2 * log_p).exp().sum(1)

    def pick(self, scores, candidates):
        best = scores.masked_fill(~candidates, -torch.inf).argmax(1, keepdim=True)
        return torch.zeros_like(candidates).scatter(1, best, True)


@dataclass(frozen=True)
class SquareGrid(Grid):
    """A newcomer's grid: t = (n/N)^2."""

    def times(self, steps):
        return EvenGrid().times(steps).square()


each_sampler = pytest.mark.parametrize(
    "sampler", [*samplers.EXAMPLES, *planners.EXAMPLES, RightToLeft(), Peaked()], ids=str
)
each_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
each_grid = pytest.mark.parametrize("grid", [*samplers.GRIDS, SquareGrid()], ids=name)


def free_positions() -> torch.Tensor:
    """Some positions of some sequences are fixed; one sequence has no free position, one has only free ones."""
    free = torch.rand(ROWS, LENGTH, generator=generator(0)) < 0.7
    free[0], free[1] = True, False
    return free


def drawn(sampler: Sampler, schedule, free: torch.Tensor, rows=range(ROWS)) -> Events:
    return sampler.events(Flow(Mask(Vocab(3, 1)), schedule), 0.0, free, RandomStreams(7, rows))


@each_schedule
@each_sampler
def test_the_last_event_of_every_free_position_is_a_redraw_and_fixed_positions_have_none(sampler, schedule):
    free = free_positions()
    found = drawn(sampler, schedule, free)
    last, ends_in_redraw = torch.full((ROWS, LENGTH), -1), free.clone()
    for row, position, step, corrector in zip(
        found.row.tolist(), found.position.tolist(), found.step.tolist(), found.is_corrector.tolist(), strict=True
    ):
        assert step != last[row, position]  # one event per position and step
        if step > last[row, position]:
            last[row, position], ends_in_redraw[row, position] = step, not corrector
    assert torch.equal(last >= 0, free)
    assert torch.equal(ends_in_redraw, free)


@each_schedule
@each_sampler
def test_times_lie_in_0_to_1_increase_with_the_step_and_belong_to_the_schedule(sampler, schedule):
    found = drawn(sampler, schedule, free_positions())
    assert bool(((found.t >= 0) & (found.t <= 1)).all())
    for row in range(ROWS):
        mine = found.row == row
        steps, times = found.step[mine], found.t[mine]
        order = steps.argsort(stable=True)
        assert bool((times[order].diff() >= 0).all())
        for step in steps.unique():
            assert len(times[steps == step].unique()) == 1  # the network is called with one time per sequence
    torch.testing.assert_close(found.rest, schedule.rest(found.t))


@each_sampler
def test_the_uniform_numbers_of_events_lie_in_0_to_1(sampler):
    found = drawn(sampler, SCHEDULES[0], free_positions())
    decided = found.accept[found.accept != ALWAYS]  # a refresh is accepted without a number
    assert sampler.refresh or len(decided) == len(found.accept)
    for numbers in (found.token, decided):
        assert bool(((numbers >= 0) & (numbers < 1)).all())


@each_sampler
def test_the_events_of_a_sequence_do_not_depend_on_the_others(sampler):
    free = free_positions()
    together = drawn(sampler, SCHEDULES[0], free)
    for row in range(ROWS):
        alone, mine = drawn(sampler, SCHEDULES[0], free[row : row + 1], [row]), together.row == row
        assert sorted(zip(alone.step.tolist(), alone.position.tolist(), alone.token.tolist(), strict=True)) == sorted(
            zip(
                together.step[mine].tolist(),
                together.position[mine].tolist(),
                together.token[mine].tolist(),
                strict=True,
            )
        )


@each_sampler
def test_step_times_are_those_of_the_events(sampler):
    times = sampler.step_times
    if times is None:
        return
    assert times[0] == 0
    assert times[-1] == 1
    found = drawn(sampler, SCHEDULES[0], free_positions())
    assert torch.equal(found.t, times[found.step])


@each_sampler
@pytest.mark.parametrize("source", [Mask(Vocab(3, 1)), MultiMask(Vocab(3, 3))], ids=name)
def test_every_mask_is_replaced_by_a_data_token_and_a_prompt_stays(sampler, source):
    def network(xt, t):
        return torch.zeros(*xt.shape, 3)

    out = generate(network, Flow(source), n=8, length=LENGTH, sampler=sampler)
    assert bool((out.tokens < 3).all())
    # each position hops once; a refresh may return it to a mask
    assert bool(((out.jumps >= LENGTH) if sampler.refresh else (out.jumps == LENGTH)).all())
    assert out.sampler == sampler
    assert sampler.label in str(out)
    prompt = torch.tensor([[2, HOLE, 1, HOLE, 0]])
    filled = infill(network, Flow(source), prompt, sampler=sampler).tokens
    assert filled[0, [0, 2, 4]].tolist() == [2, 1, 0]
    assert bool((filled < 3).all())


@each_grid
@pytest.mark.parametrize("steps", [1, 2, 7, 1000])
def test_times_increase_from_exactly_0_to_exactly_1(grid, steps):
    times = grid.times(steps)
    assert times.dtype == torch.float64
    assert times.shape == (steps + 1,)
    assert times[0] == 0
    assert times[-1] == 1
    assert bool((times.diff() > 0).all())


@each_grid
def test_a_grid_works_in_euler_steps_and_appears_in_its_label(grid):
    sampler = Euler(5, grid)
    assert torch.equal(sampler.step_times, grid.times(5))
    assert sampler.label.startswith("5 Euler steps")
    assert grid == EvenGrid() or name(grid) in sampler.label


def test_a_new_sampler_and_a_new_grid_are_found_by_name_once_they_are_defined():
    assert choose("sampler", "right_to_left") == RightToLeft()
    assert choose("sampler", "peaked") == Peaked()
    assert choose("grid", "square") == SquareGrid()
    assert choose("sampler", "euler", steps=4, grid=SquareGrid()) == Euler(4, SquareGrid())
