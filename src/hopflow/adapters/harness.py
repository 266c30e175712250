"""The model `hopflow` of lm-evaluation-harness: bounds as log-likelihoods, infilling as generation.

Install the harness with `pip install 'hopflow[harness]'`. `python -m hopflow.adapters.harness` is its command line.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from .. import __version__
from ..network.network import label_count
from ..network.precision import at_least_float32
from ..runs.devices import choose_device
from ..runs.pretrained import from_pretrained
from ..sampling.generate import infill
from ..sampling.generation import HOLE
from ..system import atomic
from .conditional import ConditionalBound, tightest_bound

try:
    import lm_eval.models  # the harness does so itself only if no model is registered  # noqa: F401
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import model_registry, register_model
except ImportError:
    raise ImportError("lm-evaluation-harness is not installed: pip install 'hopflow[harness]'") from None

LENGTH = 1024
"""The longest sequence if the run does not say which length it was trained on."""
GENERATED = 256
"""The most tokens of `generate_until`, as for other models of the harness; half of the length if that is less."""


class HopflowLM(TemplateLM):  # type: ignore[misc]
    """A trained flow for lm-evaluation-harness.

    A log-likelihood is minus an upper bound on -log p_θ(continuation | context), so it is a lower bound on the
    log-likelihood. The context is fixed as in infilling. Every request has the same number of draws and the same seed:
    its score does not depend on other requests.
    """

    def __init__(
        self,
        pretrained: str | os.PathLike[str],
        bound: str = "auto",
        draws: int = 128,
        steps: int = 32,
        seed: int = 0,
        device: str | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        max_length: int | None = None,
        precision: str = "auto",
        scores: str | None = None,
    ) -> None:
        """
        pretrained: folder of a run or of a saved network.
        bound: auto, b0, b1, bk, bn or br; auto is the bound that is tight for a perfect network of the flow.
        draws: network calls per bound.
        steps: steps of infilling, and of the sampler that bn and br bound.
        batch_size: sequences per network call; `auto` suits the device. It does not change a score.
        max_length: longest sequence in tokens (default: the training length). Contexts lose their beginning.
        scores: a .jsonl file for the bound and the error of every request.
        """
        super().__init__()
        saved = from_pretrained(pretrained)
        if saved.flow is None or saved.tokenizer is None:
            missing = "flow" if saved.flow is None else "tokenizer"
            raise ValueError(f"{pretrained}: a saved network with a {missing} is needed, this one has none.")
        if label_count(saved.model):
            raise ValueError(f"{pretrained} has labels, which requests of lm-evaluation-harness cannot name.")
        self._device = choose_device(device or "auto")
        self.model = at_least_float32(saved.model).to(self._device)
        self.flow, self.tokenizer, self.sha256 = saved.flow, saved.tokenizer, saved.sha256
        self.batch = _batch(batch_size)
        self.max_length = _positive("max_length", max_length or (saved.recipe or {}).get("length") or LENGTH, least=2)
        quantity = tightest_bound(self.flow) if bound == "auto" else bound
        draws, steps = _positive("draws", draws, least=2), _positive("steps", steps)
        self.bound = ConditionalBound(quantity, draws, steps, seed, self.batch, precision)
        self.scores_file = None if scores is None else Path(scores)
        self.rows: list[dict[str, Any]] = []
        """One row per scored part of a request: nats, stderr, quantity, tokens and the name of the request."""

    @property
    def eot_token_id(self) -> int | None:
        """The end-of-text token, which precedes a text without context; None if the tokenizer has none."""
        return self.tokenizer.end

    @property
    def tokenizer_name(self) -> str:
        """The name of the tokenizer, for caches of requests."""
        return f"{self.tokenizer.name}-{self.tokenizer.sha256[:12]}"

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: object) -> list[int]:
        """The ids of a text."""
        ids: list[int] = self.tokenizer.encode(string)
        return ids

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """(log-likelihood, is_greedy) of each (context, continuation)."""
        found = []
        for context, continuation in (request.args for request in requests):
            before, tokens = self._start, self.tok_encode(continuation)
            if context:
                before, tokens = self._encode_pair(context, continuation)  # blanks at the end of a context move
            found.append(self._score(before or self._start, tokens, "loglikelihood", (context, continuation)))
        self._write()
        return found

    def _loglikelihood_tokens(self, requests: Sequence[Any], **kwargs: object) -> list[tuple[float, bool]]:
        return [self._score(context, tokens, "loglikelihood", texts) for texts, context, tokens in requests]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """The log-likelihood of each text, in consecutive parts of the longest length."""
        found = []
        for (text,) in (request.args for request in requests):
            nats = sum(self._nats(*part, text) for part in _parts(self._start, self.tok_encode(text), self.max_length))
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), -nats)
            found.append(-nats)
        self._write()
        return found

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Fill the tokens after each context, and cut the text at the first of the strings `until`.

        With `do_sample`, a context that is repeated gets the next seed each time.
        """
        found, repeats = [], Counter[str]()
        for context, options in (request.args for request in requests):
            longest = min(GENERATED, self.max_length // 2)
            count = _positive("max_gen_toks", options.get("max_gen_toks", longest))
            count = min(count, self.max_length)
            before = self.tok_encode(context) if context else self._start
            temperature = _temperature(options)
            seed = self.bound.seed + repeats[context]
            repeats[context] += temperature > 0
            filled = self._fill(_last(before, self.max_length - count), count, temperature, seed, options.get("top_p"))
            until = options.get("until") or []
            text = self._text(filled, [until] if isinstance(until, str) else until)
            self.cache_hook.add_partial("generate_until", (context, options), text)
            found.append(text)
        return found

    def get_model_info(self) -> dict[str, Any]:
        """What the harness writes next to the results: which bound the log-likelihoods are, and its error."""
        errors = [row["stderr"] for row in self.rows if row["stderr"] is not None]
        return {
            "hopflow_version": __version__,
            "bound": self.bound.quantity,
            "bound_on": f"-log p(continuation | context) of {self.bound.sampler}",
            "draws": self.bound.draws,
            "bound_seed": self.bound.seed,
            "mean_stderr_nats": sum(errors) / len(errors) if errors else None,
            "max_length": self.max_length,
            "weights_sha256": self.sha256,
        }

    @property
    def _start(self) -> list[int]:
        return [] if self.eot_token_id is None else [self.eot_token_id]

    def _score(self, context: list[int], tokens: list[int], kind: str, texts: tuple[str, str]) -> tuple[float, bool]:
        """The bound of all parts of a continuation, and whether each part is its most likely fill."""
        nats, greedy = 0.0, True
        for before, part in _parts(context, tokens, self.max_length):
            nats += self._nats(before, part, texts)
            greedy = greedy and self._fill(before, len(part), 0.0, self.bound.seed) == part
        self.cache_hook.add_partial(kind, texts, (-nats, greedy))
        return -nats, greedy

    def _nats(self, context: list[int], part: list[int], request: object) -> float:
        estimate = self.bound(self.model, self.flow, _ids(context), _ids(part))
        facts = {"request": request, "quantity": estimate.quantity, "tokens": len(part), "calls": estimate.calls}
        self.rows.append({**facts, "nats": estimate.nats, "stderr": _known(estimate.draw_stderr)})
        return estimate.nats

    def _fill(
        self, context: list[int], count: int, temperature: float, seed: int, top_p: float | None = None
    ) -> list[int]:
        """The tokens after a context. The same for equal arguments: one sequence per call of `infill`."""
        prompt = torch.cat([_ids(context), torch.full((count,), HOLE)])[None]
        options: dict[str, Any] = {"steps": self.bound.steps, "eta": self.bound.eta, "seed": seed}
        options |= {"temperature": temperature, "top_p": top_p, "precision": self.bound.precision}
        return infill(self.model, self.flow, prompt, **options).tokens[0, len(context) :].tolist()

    def _text(self, ids: list[int], until: Sequence[str]) -> str:
        """The text of ids up to the end-of-text token and the first of the strings `until`."""
        if self.eot_token_id in ids:
            ids = ids[: ids.index(self.eot_token_id)]
        text: str = self.tokenizer.decode(ids)
        return text[: min((at for stop in until if stop and (at := text.find(stop)) >= 0), default=len(text))]

    def _write(self) -> None:
        if self.scores_file is not None:
            lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in self.rows)
            atomic.write(self.scores_file, lines.encode())


def _parts(context: list[int], tokens: list[int], longest: int) -> Iterator[tuple[list[int], list[int]]]:
    """(context, part): consecutive parts of the tokens, each with as much of what precedes it as fits."""
    whole, start = context + tokens, len(context)
    while start < len(whole):
        end = min(len(whole), start + longest - min(start, 1))
        yield whole[max(0, end - longest) : start], whole[start:end]
        start = end


def _temperature(options: Mapping[str, Any]) -> float:
    """The temperature of a request: 0 without `do_sample`, and 1 if it names none."""
    asked = options.get("temperature")
    if not options.get("do_sample"):
        return 0.0
    return 1.0 if asked is None else float(asked)


def _last(ids: list[int], count: int) -> list[int]:
    return ids[-count:] if count else []


def _ids(tokens: list[int]) -> Int[Tensor, " n"]:
    return torch.tensor(tokens, dtype=torch.int64)


def _known(error: float) -> float | None:
    return None if error != error else error


def _batch(asked: int | str | None) -> int | None:
    """Sequences per network call; None for `auto`, which suits the device."""
    text = "auto" if asked is None else str(asked)
    if text.startswith("auto"):
        return None
    if not text.isdecimal():
        raise ValueError(f"batch_size must be auto or an integer ≥ 1, got {asked!r}.")
    return _positive("batch_size", int(text))


def _positive(name: str, value: Any, least: int = 1) -> int:
    if not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an integer ≥ {least}, got {value!r}.")
    return value


if "hopflow" not in model_registry:  # also registered if the harness reads entry points
    register_model("hopflow")(HopflowLM)


def main() -> None:
    """The command line of the harness, which knows the model `hopflow`."""
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    main()
