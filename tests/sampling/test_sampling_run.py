"""The queue: every event once, in order, in full batches."""

import numpy as np
import torch

from hopflow.flow import Flow
from hopflow.sampling.event_queue import EventQueue, Events
from hopflow.sampling.random_draws import RandomStreams
from hopflow.sampling.samplers import Euler
from hopflow.sources import Mask, MultiMask
from hopflow.vocab import Vocab


def events_of(turns: list[list[tuple[int, ...]]]) -> Events:
    """Per row, per turn: the positions that move."""
    flat = [(row, n, p) for row, its in enumerate(turns) for n, positions in enumerate(its) for p in positions]
    row, turn, position = torch.tensor(flat).T
    zero = torch.zeros(len(row), dtype=torch.float64)
    return Events(
        row, turn, position, turn / 10 + row.double(), zero, torch.zeros_like(row, dtype=torch.bool), zero, zero
    )


def shuffled(events: Events) -> Events:
    order = torch.randperm(len(events.row), generator=torch.Generator().manual_seed(0))
    return Events(*(getattr(events, f)[order] for f in Events.__dataclass_fields__))


def test_each_turn_gives_its_events_and_its_time():
    events = shuffled(events_of([[(0, 2), (1,)], [(3,)], [(1,), (0,), (2, 4)]]))
    queue = EventQueue(events, 3, torch.zeros(len(events.row), dtype=torch.bool))
    assert queue.calls.tolist() == [2, 1, 3]
    t = queue.times(np.array([0, 2]))
    taken, place = queue.take(np.array([0, 2]))
    at = queue.order[torch.from_numpy(taken)]
    assert events.row[at].tolist() == [0, 0, 2]
    assert sorted(events.position[at][:2].tolist()) == [0, 2]
    assert place.tolist() == [0, 0, 1]
    assert t.tolist() == [0.0, 2.0]


def test_the_sequences_with_the_most_turns_left_go_first():
    events = events_of([[(0,)], [(0,)] * 3, [(0,)] * 2])
    queue = EventQueue(events, 3, torch.zeros(6, dtype=torch.bool))
    rounds = []
    while len(rows := queue.longest(2)):
        rounds.append(rows.tolist())
        queue.take(rows)
    assert sorted(row for rows in rounds for row in rows) == [0, 1, 1, 1, 2, 2]
    assert [len(rows) for rows in rounds] == [2, 2, 2]
    assert rounds[0] == [1, 2]


def test_sequences_without_events_are_never_chosen():
    events = events_of([[], [(0,)], []])
    queue = EventQueue(events, 3, torch.zeros(1, dtype=torch.bool))
    assert queue.longest(5).tolist() == [1]
    nothing = EventQueue(events_of([[(0,)]]), 1, torch.zeros(1, dtype=torch.bool))
    nothing.take(np.array([0]))
    assert len(nothing.longest(5)) == 0


def test_turns_without_a_need_for_the_network_are_told_apart():
    events = events_of([[(0,), (1, 2)], [(0,)]])
    queue = EventQueue(events, 2, torch.tensor([True, False, True, False]))
    assert queue.calls.tolist() == [1, 1]
    assert queue.without_network().tolist() == [0]
    queue.take(np.array([0]))
    assert queue.without_network().tolist() == []


def test_every_event_is_taken_exactly_once_and_never_before_an_earlier_one():
    flow, n = Flow(MultiMask(Vocab(3, 3))), 40
    events = Euler(50).events(flow, 1.0, torch.ones(n, 6, dtype=torch.bool), RandomStreams(0, range(n)))
    queue = EventQueue(events, n, events.is_corrector)
    seen, latest = torch.zeros(len(events.row), dtype=torch.int64), torch.full((n,), -1)
    while True:
        rows = queue.without_network()
        if not len(rows):
            rows = queue.longest(7)
        if not len(rows):
            break
        at = queue.order[torch.from_numpy(queue.take(rows)[0])]
        assert (events.step[at] > latest[events.row[at]]).all()
        latest[events.row[at]] = events.step[at]
        seen[at] += 1
    assert (seen == 1).all()


def test_batches_are_full_up_to_the_last_few():
    flow, n, batch = Flow(Mask(Vocab(3, 1))), 256, 64
    events = Euler(1024).events(flow, 0.0, torch.ones(n, 128, dtype=torch.bool), RandomStreams(0, range(n)))
    queue = EventQueue(events, n, events.is_corrector)
    sizes = []
    while len(rows := queue.longest(batch)):
        queue.take(rows)
        sizes.append(len(rows))
    assert sum(sizes) == queue.calls.sum()
    assert sum(sizes) > 0.995 * batch * len(sizes)
