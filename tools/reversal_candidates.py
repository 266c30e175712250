"""Common candidate events in the reversal bound: network calls saved, and what they cost, by enumeration.

At each step a position is a candidate with probability M = max(r, (k'-k)/k'), for the sampler and for its reversal;
elsewhere both keep their token, so that a step without a candidate needs no network. The mean weight stays exact.

python tools/reversal_candidates.py
"""

import json

import torch
from torch import Tensor

import hopflow as hf
from hopflow.exact import Oracle, Perfect, Reversal, Space
from reversal_toy import markov


def rate(n: int, steps: int) -> float:
    """M of the step from x_n to x_{n+1}, for the linear schedule."""
    return max(1 / (steps - n), 1 / (n + 1))


def calls(steps: int, length: int) -> float:
    """Expected number of steps with a candidate."""
    return sum(1 - (1 - rate(n, steps)) ** length for n in range(steps))


def bound(oracle: Oracle, steps: int) -> Tensor:
    """E[-log w] of each x1 with candidates, for one path; paths have the same law as without."""
    reversal, states = Reversal(oracle, steps), oracle.space.states
    stay = torch.eye(oracle.flow.vocab.size, dtype=torch.float64)[states]
    law = torch.eye(len(states), dtype=torch.float64)[oracle.space.ids(oracle.space.data)]
    total = torch.zeros(len(law), dtype=torch.float64)
    for n in range(steps - 1, -1, -1):
        m, forth, back = rate(n, steps), reversal.forward(n), reversal.backward(n)
        chance, price = torch.ones(2, len(states), len(states), dtype=torch.float64)
        price = price - 1
        for i in range(oracle.length):
            at = states[:, i]
            # rows x_{n+1}, columns x_n
            ahead, behind = forth[:, i][:, at].T, back[:, i][:, at]
            ahead_there = ((forth - (1 - m) * stay) / m).clamp(min=0)[:, i][:, at].T
            behind_there = ((back - (1 - m) * stay) / m).clamp(min=0)[:, i][:, at]
            moved = torch.where(behind > 0, behind.log() - ahead.log(), 0.0)
            candidate = torch.where(behind_there > 0, m * behind_there / behind, 0.0)  # given that the token stays
            kept = torch.where(candidate > 0, candidate * (behind_there.log() - ahead_there.log()), 0.0)
            price = price + torch.where(at[:, None] == at, kept, moved)
            chance = chance * behind
        per_state = torch.where(chance > 0, chance * price, 0.0).sum(1)
        total, law = total + torch.where(law > 0, law * per_state, 0.0).sum(1), law @ chance
    return total + torch.where(law > 0, -law * oracle.source_law.log(), 0.0).sum(1)


def main() -> None:
    flow = hf.Flow(hf.Uniform(hf.Vocab(3)))
    for length in (2, 3, 4):
        data = Space(flow.vocab, length).data
        laws = {"copies": (data == data[:, :1]).all(1).double() / 3, "Markov": markov(length)}
        for name, law in laws.items():
            oracle = Oracle(flow, law, length, Perfect(flow, law, length))
            for steps in (32, 128):
                nll = oracle.nll(steps=steps)
                found = {"without": Reversal(oracle, steps).bound(), "with": bound(oracle, steps)}
                excess = {what: round(oracle.mean(value - nll), 4) for what, value in found.items()}
                line = {"law": name, "length": length, "steps": steps, "excess": excess}
                print(json.dumps({**line, "calls": round(calls(steps, length), 1)}), flush=True)
    for steps in (128, 1024, 4096):
        print(json.dumps({"length": 128, "steps": steps, "calls": round(calls(steps, 128), 1)}))


if __name__ == "__main__":
    main()
