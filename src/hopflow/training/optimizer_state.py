"""The saved state of AdamW, checked against the network and the step before it is loaded."""

from collections.abc import Mapping

import torch
from torch import Tensor

ENTRIES = ("step", "exp_avg", "exp_avg_sq")


def load(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor], saved: Mapping[str, Tensor], steps: int
) -> None:
    """Load `saved`, with keys "parameter/entry", into an optimizer; ValueError if it is invalid after `steps` steps.

    A parameter that never had a gradient has no entries.
    """
    if steps and not saved:
        raise ValueError(f"the checkpoint of step {steps} has no optimizer state.")
    found: dict[str, dict[str, Tensor]] = {}
    for key, value in saved.items():
        name, _, entry = key.rpartition("/")
        if name not in parameters or entry not in ENTRIES:
            raise ValueError(
                f"the saved optimizer contains {key} of shape {tuple(value.shape)}, which this network does not have."
            )
        found.setdefault(name, {})[entry] = value
    for name, entries in found.items():
        _check(name, entries, parameters[name], steps)
    optimizer.state.clear()
    fused = any(group.get("fused") for group in optimizer.param_groups)
    for name, entries in found.items():
        there = parameters[name].device
        for entry, value in entries.items():
            # AdamW keeps its step count on the CPU unless it is fused
            where = torch.device("cpu") if entry == "step" and not fused else there
            optimizer.state[parameters[name]][entry] = value.to(where)


def _check(name: str, entries: Mapping[str, Tensor], parameter: Tensor, steps: int) -> None:
    if missing := [entry for entry in ENTRIES if entry not in entries]:
        raise ValueError(f"the saved optimizer lacks {missing[0]} of {name}.")
    for entry, value in entries.items():
        shape = () if entry == "step" else tuple(parameter.shape)
        types = (torch.float32, torch.float64) if entry == "step" else (parameter.dtype,)
        if tuple(value.shape) != shape or value.dtype not in types:
            raise ValueError(
                f"the saved optimizer: {entry} of {name} must be {types[0]} of shape {shape}, got {value.dtype} of "
                f"shape {tuple(value.shape)}."
            )
        if not bool(torch.isfinite(value).all()):
            raise ValueError(f"the saved optimizer: {entry} of {name} is not finite.")
    if bool((entries["exp_avg_sq"] < 0).any()):
        raise ValueError(f"the saved optimizer: exp_avg_sq of {name} is negative.")
    taken = float(entries["step"])
    if not 1 <= taken <= steps:
        raise ValueError(f"the saved optimizer: the step count of {name} must be between 1 and {steps}, got {taken:g}.")
