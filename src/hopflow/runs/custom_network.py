"""Networks of a user's own class: what is stored of them, and how their class is found again.

A saved network names its class, but a file never causes an import. The user names the class: `model_class=` in Python,
`model=package.module:Class` on the command line. A class whose network was trained or saved in this process is known,
too.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from ..flow import Flow
from ..models.empty_network import without_weights
from ..models.model import Model
from ..models.sizes import Size
from ..network.network import NetworkCaller, label_count
from ..system.typed_import import import_typed, split_typed
from ..vocab import Vocab
from .storage import Plain, arguments, from_plain, kinds, to_plain, value_from_plain, value_to_plain

CUSTOM = "custom"
"""The kind under which a network is stored whose class is not a subclass of `Model`."""
HOW_TO_NAME = "pass model_class=Class (Python) or add model=package.module:Class (command line)"
MISTAKES = (TypeError, AttributeError, KeyError, RuntimeError)
"""Errors by which a mistake in a user's class shows; RuntimeError is torch's for wrong shapes."""
M = TypeVar("M", bound=type[nn.Module])

_KNOWN: dict[str, type[nn.Module]] = {}
"""The classes that the user has named in this process, by `package.module:Class`; the newest last."""


def register(cls: M) -> M:
    """Allow `from_pretrained` to build networks of this class in this process."""
    if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
        raise ValueError(f"model_class must be a subclass of torch.nn.Module, got {cls!r}")
    _KNOWN.pop(name_of(cls), None)
    _KNOWN[name_of(cls)] = cls
    return cls


def is_out_of_memory(error: Exception) -> bool:
    """Whether a RuntimeError means that memory ran out; on a CPU only torch's message says so."""
    return isinstance(error, torch.OutOfMemoryError) or "alloc" in str(error)


def check_call(model: nn.Module, flow: Flow, length: int, device: torch.device) -> None:
    """Raise a ValueError if the network does not fit its flow, by calling it on one row of this length."""
    name, last = type(model).__name__, flow.vocab.size - 1
    try:
        logits = NetworkCaller(model).logits(
            torch.full((1, length), last, device=device), torch.zeros(1, device=device)
        )
        if not logits.is_floating_point():
            raise ValueError(f"the logits of {name} must be real numbers, got {logits.dtype}.")
        flow.vocab.check_logits(logits)
        if tuple(logits.shape[:-1]) != (1, length):
            raise ValueError(
                f"the logits of {name} must have shape (batch, length, {flow.vocab.data}), got {tuple(logits.shape)} "
                f"for a batch of 1 and a length of {length}."
            )
    except IndexError as error:
        raise ValueError(
            f"the flow has {flow.vocab.size} tokens, but {name} fails on the last one, {last}: {error}"
        ) from error
    except MISTAKES as error:
        if isinstance(model, Model) or is_out_of_memory(error):
            raise
        takes = "(xt, t, labels)" if label_count(model) else "(xt, t)"
        raise ValueError(
            f"{name} fails on tokens of shape (1, {length}): {type(error).__name__}: {error}\n"
            f"a network takes {takes} and returns logits of shape (batch, length, {flow.vocab.data})"
        ) from error


def name_of(cls: type) -> str:
    """`package.module:Class`, as it is typed on the command line."""
    return f"{cls.__module__}:{cls.__qualname__}"


def is_class(text: str) -> bool:
    """Whether a value of `model` has the form package.module:Class, unlike the names of hopflow's networks."""
    return ":" in text


def load_class(text: str) -> type[nn.Module]:
    """Import the class `package.module:Class` that the user has typed, and register it.

    The current directory is searched after all installed packages. Call this only with text that the user has typed,
    never with text from a file: importing a module runs its code.
    """
    module, name = split_typed(text, "model", "package.module:Class")
    found = import_typed(module, text, "model")
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"model={text}: {module} has no {part}; its networks are: {_networks(found)}")
        found = getattr(found, part)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ValueError(f"model={text} is not a subclass of torch.nn.Module")
    return register(found)


def _networks(module: Any) -> str:
    own = [name for name, cls in vars(module).items() if isinstance(cls, type) and issubclass(cls, nn.Module)]
    return ", ".join(sorted(own)) or "none"


def describe_network(model: nn.Module) -> Plain:
    """A network's class and constructor arguments as JSON data.

    The arguments of a `Model` are its attributes. A plain nn.Module may have a method `config()` that returns them;
    else they are its attributes of the same names. Arguments that cannot be stored are left out: such a network can be
    loaded with `from_pretrained(folder, model=…)` only.
    """
    cls = type(model)
    if isinstance(model, Model):
        return to_plain(model)
    register(cls)
    plain: Plain = {"kind": CUSTOM, "class": f"{cls.__module__}.{cls.__qualname__}"}
    config = getattr(model, "config", None)
    try:
        values = config() if callable(config) else {name: getattr(model, name) for name in arguments(cls)}
        stored = {str(name): value_to_plain(value, name) for name, value in dict(values).items()}
    except Exception as error:  # config() and the annotations are the user's code
        if callable(config):
            text = f"{cls.__name__}.config() must return a dict of constructor arguments; not stored: {error}"
            warnings.warn(text, RuntimeWarning, stacklevel=4)
        return plain
    return {**plain, "arguments": stored}


def build_network(plain: Any, folder: Path, model_class: type[nn.Module] | None = None) -> nn.Module:
    """The network that `describe_network` has described, without its weights.

    hopflow's own networks are built on the meta device: no memory is allocated before the file is known to fit.
    """
    if isinstance(plain, Mapping) and plain.get("kind") == CUSTOM:
        return _build_custom(plain, folder, model_class or _known(str(plain.get("class")), folder))
    if model_class is not None and isinstance(plain, Mapping) and plain.get("kind") != model_class.__name__:
        raise ValueError(f"{folder} contains a {plain.get('kind')}, not a {model_class.__name__}: omit model_class")
    cls = model_class or kinds(Model).get(str(plain.get("kind")) if isinstance(plain, Mapping) else "")
    if cls is not None and not cls.__module__.startswith("hopflow."):  # it may make tensors that are not saved
        with torch.random.fork_rng(devices=[]):
            return from_plain(cls, plain)
    try:
        with without_weights():
            return from_plain(Model, plain)
    except ValueError as error:
        raise ValueError(f"{error}. If the class is your own: {HOW_TO_NAME}" if cls is None else str(error)) from None


def _known(stored: str, folder: Path) -> type[nn.Module]:
    """The registered class of this stored name, or the newest one with the same name from another module."""
    name = stored.rpartition(".")[2]
    exact = [cls for cls in _KNOWN.values() if f"{cls.__module__}.{cls.__qualname__}" == stored]
    found = exact or [cls for cls in _KNOWN.values() if cls.__name__ == name]
    if not found:
        raise ValueError(
            f"{folder} contains a network of the class {stored}, which is not part of hopflow, and a file never causes "
            f"an import: {HOW_TO_NAME}"
        )
    return found[-1]


def _build_custom(plain: Mapping[str, Any], folder: Path, cls: type[nn.Module]) -> nn.Module:
    stored = plain.get("arguments")
    if not isinstance(stored, Mapping):
        raise ValueError(
            f"{folder} contains the weights of a {plain.get('class')} without its constructor arguments: build the "
            f"network and pass it, from_pretrained(folder, model=…). To have them stored, give the class a method "
            f"config() that returns them as a dict of numbers, text, lists and components, and save again"
        )
    hints = arguments(register(cls))
    values = {name: _value(hints.get(name, object), value, name) for name, value in stored.items()}
    try:
        with torch.random.fork_rng(devices=[]):  # initial weights draw random numbers
            return cls(**values)
    except Exception as error:  # the user's constructor
        shown = ", ".join(f"{name}={value!r}" for name, value in values.items())
        raise ValueError(f"{name_of(cls)}({shown}) fails: {error}") from error


def _value(hint: Any, value: object, name: str) -> Any:
    if hint in (object, Any):  # not annotated
        for family in (Vocab, Size):
            if isinstance(value, Mapping) and value.get("kind") == family.__name__:
                return from_plain(family, value)
        return value
    return value_from_plain(hint, value, name)


def named_class(text: str) -> type[nn.Module]:
    """The registered class `package.module:Class`; a ValueError if the user has not named it in this process."""
    if text not in _KNOWN:
        raise ValueError(
            f"model={text} is a class of your own, and a file never causes an import: add model={text} to the command, "
            f"or call hopflow.runs.custom_network.load_class({text!r}) first"
        )
    return _KNOWN[text]
