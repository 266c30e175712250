"""Two random flows on one space, with velocities that move in time."""

import torch
import toys

from hopflow import exact
from hopflow.exact import PathKL, Space, Velocity
from hopflow.vocab import Vocab

SPACES = (Space(Vocab(2), 2), Space(Vocab(3), 2), Space(Vocab(2), 3))


def random_velocity(space: Space, seed: int) -> Velocity:
    shape = (2, len(space.states), space.length, space.vocab.size)
    still, moving = torch.rand(shape, generator=toys.generator(seed), dtype=torch.float64)
    return lambda t: still + t * moving


def two_flows(space: Space, seed: int, same: bool = False) -> PathKL:
    w = random_velocity(space, seed)
    v = w if same else random_velocity(space, seed + 100)
    q0 = toys.dirichlet(len(space.states), seed=seed + 200)
    p0 = q0 if same else toys.dirichlet(len(space.states), seed=seed + 300)
    return exact.kl_bound(space, w, v, q0, p0)
