"""Network: what hopflow expects of a network, and NetworkCaller, the one place where hopflow calls it.

A network is any callable `(xt (B, L), t (B,)) -> logits (B, L, Vd)` over data tokens. If it also has the methods
`features(xt, t) -> (B, L, D)` and `head(features) -> logits`, the head runs only at the positions that need it. A
network with labels has an attribute `labels`, their number, and takes the label of each sequence (B,) as a third
argument; -1 is no label.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from threading import Lock
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..kernels.fused_head import Bf16x3Head
from .precision import autocast, autocast_is_on, choose_precision, computed_dtype

Network = Callable[..., Tensor]
Head = Callable[[Tensor], Tensor]

TOKENS, GPU_TOKENS = 1 << 13, 1 << 16
"""Tokens per network call."""
LOGITS_PER_TOKEN = 1 << 14
"""Logits per token above which a network without a separate head gets smaller batches: 512 MiB on a CPU, 4 GiB on a
GPU."""

NO_LABEL = -1

_lock = Lock()
_evaluating: WeakKeyDictionary[nn.Module, tuple[int, bool]] = WeakKeyDictionary()
"""Modules in evaluation mode: by how many contexts, and whether the first of them found the module in training mode."""


@contextmanager
def evaluation_mode(model: Network) -> Iterator[None]:
    """Disable gradients and dropout inside; afterwards every submodule returns to the mode it was in.

    Several threads may use one network at the same time: the last one to leave restores the modes.
    """
    parts = list(model.modules()) if isinstance(model, nn.Module) else []
    with _lock:
        for part in parts:
            count, found = _evaluating.get(part, (0, part.training))
            _evaluating[part] = count + 1, found
            part.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        with _lock:
            for part in parts:
                count, found = _evaluating.pop(part)
                if count > 1:
                    _evaluating[part] = count - 1, found
                else:
                    part.training = found


def time_dtype(model: Network, plain: torch.dtype = torch.float32) -> torch.dtype:
    """The float type of the times t that a network gets: float64 for a float64 module, otherwise float32.

    bf16 and float16 have too few digits for times. `plain` is the type for a plain function; the exact oracle passes
    float64 there, because its integrators need exact times.
    """
    if not isinstance(model, nn.Module):
        return plain
    return torch.float64 if next(model.parameters(), torch.empty(0)).dtype == torch.float64 else torch.float32


def device_of(model: Network) -> torch.device:
    """The device of a module's weights; the CPU for a plain function."""
    if not isinstance(model, nn.Module):
        return torch.device("cpu")
    return next(model.parameters(), torch.empty(0)).device


def to_device_of(model: Network, x: Tensor) -> Tensor:
    """The tensor on the device of a module's weights; a plain function takes it where it is."""
    weights = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return x if weights is None else x.to(weights.device)


def embedding_table(model: Network) -> Tensor | None:
    """The token embeddings (V, D) that a network offers as its attribute `table`; None if it has none."""
    table = getattr(model, "table", None)
    return table if isinstance(table, Tensor) else None


def has_head(model: Network) -> bool:
    """Whether a network has the methods `features` and `head`, so that the head can run at chosen positions only."""
    return all(callable(getattr(model, name, None)) for name in ("features", "head"))


def label_count(model: object) -> int | None:
    """The number of labels of a network, its attribute `labels`; None if it has no such attribute."""
    count = getattr(model, "labels", None)
    return count if isinstance(count, int) and not isinstance(count, bool) else None


def check_labels(model: object, labels: Tensor | None, count: int) -> None:
    """Raise a ValueError unless `labels` has one label of this network for each of `count` sequences.

    None is accepted for a network without labels only.
    """
    known = label_count(model)
    if labels is None:
        if known:
            raise ValueError(
                f"the network has {known} labels: pass labels=…, one integer from 0 to {known - 1} per sequence, or "
                f"{NO_LABEL} for no label."
            )
        return
    if not isinstance(labels, Tensor) or labels.dtype not in (torch.int64, torch.int32) or labels.ndim != 1:
        got = f"{labels.dtype} of shape {tuple(labels.shape)}" if isinstance(labels, Tensor) else repr(labels)
        raise ValueError(f"labels must be integers of shape ({count},), one label per sequence, got {got}.")
    if len(labels) != count:
        raise ValueError(f"labels must contain one label per sequence ({count}), got {len(labels)}.")
    if known == 0 or (known is None and not _takes_labels(model)):
        raise ValueError(
            f"this {_name(model)} has no labels: leave labels out, or train a network with labels, "
            f"Transformer(vocab, labels=N)."
        )
    most = torch.inf if known is None else known
    outside = (labels < NO_LABEL) | (labels >= most)
    if bool(outside.any()):
        limit = "" if known is None else f" to {known - 1}"
        raise ValueError(
            f"labels must be integers from 0{limit}, or {NO_LABEL} for no label, got {int(labels[outside][0])}."
        )


def _takes_labels(model: Any) -> bool:
    """Whether a network can be called with three arguments."""
    call: Callable[..., object] = model.forward if isinstance(model, nn.Module) else model
    try:
        inspect.signature(call).bind(None, None, None)
    except TypeError:
        return False
    except ValueError:  # a callable without a signature
        return True
    return True


def _name(model: object) -> str:
    return type(model).__name__ if isinstance(model, nn.Module) else "network"


def is_autoregressive(model: object) -> bool:
    """Whether a network predicts each token from those before it, without a flow: its `is_autoregressive` is True."""
    return getattr(model, "is_autoregressive", False) is True


@contextmanager
def use_precision(model: Network, device: torch.device, requested: str = "auto") -> Iterator[str]:
    """Compute in the requested precision inside; yields its name for results, as in `computed_dtype`.

    `auto` leaves an autocast of the caller unchanged. Otherwise it means bf16 on a device that supports it, for a
    network with features and a head; the head then still runs in the type of its weights. A network that is a single
    function stays in the type of its weights. `float32` turns autocast off; float64 weights stay in float64.
    """
    name = choose_precision(requested, device)
    inside = autocast_is_on(device)
    if requested == "auto" and (inside or not has_head(model)):
        context: AbstractContextManager[object] = nullcontext()
    elif name == "bf16":
        context = autocast(name, device)
    else:
        context = torch.autocast(device.type, enabled=False) if inside else nullcontext()
    with context:
        yield computed_dtype(model, device)


class FullPrecisionHead:
    """A network's own head, computed in the float type of its weights even inside autocast."""

    def __init__(self, model: Network, outputs: int | None) -> None:
        self._model: Any = model
        self._outputs = outputs

    def __call__(self, features: Float[Tensor, "n D"]) -> Float[Tensor, "n Vd"]:
        parameters = getattr(self._model, "parameters", tuple)
        weights = next(iter(parameters()), features).dtype
        with torch.autocast(features.device.type, enabled=False):
            logits: Tensor = self._model.head(features.to(weights))
        check_outputs(logits.shape[-1], self._outputs)
        return logits


def full_precision_head(model: Network, outputs: int | None) -> FullPrecisionHead | Bf16x3Head:
    """The head of a network in the type of its weights; a float32 linear head on a GPU runs as three bf16 products."""
    head: Any = getattr(model, "head", None)
    if type(head) is nn.Linear and head.weight.is_cuda and Bf16x3Head.supports(head):
        check_outputs(head.out_features, outputs)
        return Bf16x3Head(head)
    return FullPrecisionHead(model, outputs)


def check_outputs(count: int, outputs: int | None) -> None:
    """Reject a network that predicts anything but data tokens; None accepts every number of outputs."""
    if outputs is not None and count != outputs:
        raise ValueError(
            f"a network predicts data tokens only: it must return {outputs} logits per position, got {count}."
        )


def check_rows(out: Tensor, xt: Tensor) -> None:
    """Reject logits or features that do not have one row for each token of xt."""
    if out.shape[:-1] != xt.shape:
        wanted = ", ".join(map(str, xt.shape))
        raise ValueError(
            f"a network must return one row of logits (or features) per token: shape ({wanted}, …) for these tokens, "
            f"got {tuple(out.shape)}."
        )


class NetworkCaller:
    """Calls a network for losses, bounds, samplers, costs and evaluation.

    It runs features and head separately where the network has both, compiles the features, chooses the precision, the
    batch size and evaluation mode.

    - `outputs`: number of data tokens, the width of the logits. None accepts any width.
    - `precision`: None leaves autocast as the surrounding code set it, and the head is the network's own; losses use
      this. auto, float32 or bf16 apply inside `inference`, and the head runs in the type of its weights.
    - `plain_time`: the float type of the times that a plain function gets; the exact oracle passes float64.
    - `all_positions`: run the head at every position, not only where a token may change; for benchmarks.
    """

    def __init__(
        self,
        model: Network,
        outputs: int | None = None,
        *,
        precision: str | None = None,
        plain_time: torch.dtype = torch.float32,
        all_positions: bool = False,
    ) -> None:
        self.model, self.outputs, self.precision = model, outputs, precision
        self.plain_time, self.all_positions = plain_time, all_positions
        self._compiled: Network | None = None

    @classmethod
    def of(cls, network: "Network | NetworkCaller", outputs: int | None = None) -> "NetworkCaller":
        """The caller itself, or a new one for a network."""
        return network if isinstance(network, NetworkCaller) else cls(network, outputs)

    @property
    def has_head(self) -> bool:
        """Whether features and head can run separately."""
        return has_head(self.model)

    @property
    def device(self) -> torch.device:
        """The device of the weights; the CPU for a plain function."""
        return device_of(self.model)

    @property
    def time_dtype(self) -> torch.dtype:
        """The float type of the times t that the network gets."""
        return time_dtype(self.model, self.plain_time)

    def compile(self, *arguments: Any, **options: Any) -> None:
        """Compile the features, because the head has its own kernels; without a head, the complete module in place."""
        if self.has_head:
            self._compiled = torch.compile(cast(Any, self.model).features, dynamic=False)
        else:
            cast(nn.Module, self.model).compile(*arguments, **options)

    def features(self, *inputs: Tensor) -> Tensor:
        """The network's features, compiled after `compile`; precision and mode are those of the surrounding code."""
        features: Tensor = (self._compiled or cast(Any, self.model).features)(*inputs)
        check_rows(features, inputs[0])
        return features

    def x0_features(self, features: Tensor, *inputs: Tensor) -> Tensor:
        """The input of the network's x0_head, from its features; precision and mode are those of the surrounding code.

        A network without the method `x0_features` has a head that reads the features.
        """
        own = getattr(self.model, "x0_features", None)
        return features.detach() if own is None else cast(Tensor, own(features, *inputs))

    @property
    def head(self) -> Head:
        """The network's own head for losses (`precision=None`), otherwise the head in the type of its weights."""
        return cast(Head, cast(Any, self.model).head) if self.precision is None else self.full_precision_head

    @property
    def chunks_head(self) -> bool:
        """Whether the head runs on chunks of rows; a loss keeps all logits for its gradient."""
        return self.precision is not None

    @cached_property
    def full_precision_head(self) -> Head:
        """The head in the type of its weights. Made once: the weights must not change afterwards."""
        return full_precision_head(self.model, self.outputs)

    def logits(self, xt: Tensor, t: Tensor) -> Tensor:
        """Logits of all positions, in evaluation mode and the surrounding precision; t may have any float type.

        A network with labels is called without label.
        """
        labels = (torch.full_like(xt[:, 0], NO_LABEL),) if label_count(self.model) else ()
        with self.evaluation_mode():
            return self.model(xt, t.to(self.time_dtype), *labels)

    def evaluation_mode(self) -> AbstractContextManager[None]:
        """Disable gradients and dropout inside."""
        return evaluation_mode(self.model)

    def use_precision(self, device: torch.device) -> AbstractContextManager[str]:
        """Compute in this caller's precision inside; yields its name for results."""
        if self.precision is None:
            return nullcontext(computed_dtype(self.model, device))
        return use_precision(self.model, device, self.precision)

    @contextmanager
    def inference(self, device: torch.device) -> Iterator[str]:
        """Evaluation mode and this caller's precision inside; yields the name of the precision."""
        with self.evaluation_mode(), self.use_precision(device) as name:
            yield name

    def batch_size(self, length: int, device: torch.device) -> int:
        """Sequences per call: many tokens, but with full logits no more than fit into memory."""
        tokens = TOKENS if device.type == "cpu" else GPU_TOKENS
        if not self.has_head and self.outputs is not None:
            tokens = min(tokens, tokens * LOGITS_PER_TOKEN // self.outputs)
        return max(1, tokens // length)
