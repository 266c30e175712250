"""The network that the repository contains: trained on novels, stored in bf16 with a model card and its evaluation."""

import json
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..bench.machine import machine
from ..bounds.estimate import Estimate, for_json
from ..bounds.nll import kappa_bound, nll_bound
from ..bounds.reversal import reversal_bound
from ..couplings import Independent
from ..data import Corpus
from ..evaluation import sets
from ..evaluation.evaluated_model import EvaluatedModel
from ..evaluation.metrics import Samples, metric
from ..evaluation.transport import Jumps
from ..network.network import device_of
from ..recipes import Recipe, build, named
from ..runs.devices import choose_device
from ..runs.metrics import read as read_metrics
from ..runs.pretrained import from_pretrained, save_pretrained, step_of
from ..sampling.generate import generate
from ..system import atomic
from ..system.progress import ProgressCallback
from ..training.signals import Interrupted

LARGEST_FILE = 16_000_000
"""Bytes of a file of weights."""
MOST_PARAMETERS = 16_000_000
EVALUATION = "evaluation.json"
CARD = "README.md"


@dataclass(frozen=True)
class NetworkNumbers:
    """What the model card states of a trained network."""

    parameters: int
    steps: int
    tokens: int
    seconds: float
    device: str
    set: str
    rows: int
    bounds: dict[str, tuple[float, float]]
    """Perplexity bounds and their errors."""
    samples: dict[str, tuple[float, float]]
    """Hops and entropy of samples, with their errors."""
    first: str
    """The first sample, uncurated."""


def network_recipe(base: str, *, data: str, tokens: str, size: str, steps: int, batch: int, device: str) -> Recipe:
    """A recipe of the paper with a small vocabulary, so that the network has at most 16 M parameters."""
    return replace(
        named(base),
        data=data,
        tokens=tokens,
        size=size,
        steps=steps,
        batch=batch,
        lr=1e-3,
        warmup=500,
        weight_ema=0.9999,
        predict_x0=False,
        seed=0,
        device=device,
        compile=choose_device(device).type == "cuda",
        log_every=100,
        save_every=10**6,
        save_minutes=2.0,
        eval_every=0,
        eval_rows=0,
        eval_samples=0,
        keep=1,
    )


def run(
    out: Path,
    *,
    work: Path = Path("runs/novels"),
    recipe: str = "dfm_b_exact_ema",
    data: str = "novels",
    tokens: str = "bpe:4096",
    size: str = "mini",
    steps: int = 40_000,
    batch: int = 512,
    minutes: float | None = None,
    rows: int = 256,
    samples: int = 128,
    commit: str | None = None,
    device: str = "auto",
    offline: bool = False,
    say: ProgressCallback = lambda text: None,
) -> Path:
    """Train in the folder `work`, and write network, evaluation and model card to `out`.

    After `minutes` the training stops and the network of that time is written; the same call continues it.
    """
    chosen = network_recipe(recipe, data=data, tokens=tokens, size=size, steps=steps, batch=batch, device=device)
    built = build(chosen, offline=offline, progress=say)
    count = sum(parameter.numel() for parameter in built.model.parameters())
    if count > MOST_PARAMETERS:
        raise ValueError(f"the network has {count:,} parameters, more than {MOST_PARAMETERS:,}: choose a smaller size")
    say(
        f"training {count:,} parameters: {steps:,} steps"
        + ("" if minutes is None else f", at most {minutes:g} minutes")
    )

    def log(row: Mapping[str, Any]) -> None:
        say(f"step {row['step'] + 1:,} of {steps:,}, loss {row['loss']:.4f}")

    try:
        built.train(out=work, logger=log, progress=None if minutes is None else _stop_after(60 * minutes))
    except Interrupted:
        if minutes is None:
            raise
        say(f"stopped after {minutes:g} minutes; the same command continues")
    export(work, out, built.corpus)
    say("evaluating")
    numbers = evaluate(out, work, rows=rows, samples=samples, device=device, offline=offline, say=say)
    atomic.write(out / EVALUATION, (json.dumps(for_json(asdict(numbers)), indent=1) + "\n").encode())
    atomic.write(out / CARD, card(out.name, chosen, numbers, commit).encode())
    return out


def _stop_after(seconds: float) -> Callable[[int, int], None]:
    """A progress callback that asks the training to save and stop, as SIGTERM does, once the time is spent."""
    start = time.monotonic()

    def progress(done: int, total: int) -> None:
        if done < total and time.monotonic() - start > seconds:
            signal.raise_signal(signal.SIGTERM)

    return progress


def export(work: Path, out: Path, corpus: Corpus) -> None:
    """Write the newest checkpoint of a run as a network in bf16, with its averaged weights if it has them."""
    found = from_pretrained(work)
    identity = {f"data.{key}": value for key, value in corpus.identity.items()}
    recipe = {**(found.recipe or {}), "identity": identity, "device": "auto", "steps": step_of(found.folder)}
    model = found.model.to(torch.bfloat16)
    save_pretrained(out, model, found.flow, tokenizer=found.tokenizer, recipe=recipe, largest_file=LARGEST_FILE)


def evaluate(
    folder: Path, work: Path, *, rows: int, samples: int, device: str, offline: bool, say: ProgressCallback
) -> NetworkNumbers:
    """Bounds on held-out text, and hops and entropy of samples, of the network as it was stored."""
    subject = EvaluatedModel.load(folder, device)
    assert subject.flow is not None
    assert subject.length is not None
    texts = sets.held_out(subject, offline=offline, progress=say).shuffled(0)
    x1 = texts.x1[:rows].to(device_of(subject.model))
    model, flow = subject.model, subject.flow
    independent = replace(flow, coupling=Independent())
    asked: dict[str, Callable[[], Estimate]] = {
        "b0": lambda: nll_bound(model, flow, x1),
        "b1": lambda: nll_bound(model, flow, x1, eta=1),
    }
    if not flow.prediction.keeps_data_tokens(flow.source):
        asked["bk"] = lambda: kappa_bound(model, flow, x1)
        asked["br, 32 steps, 8 paths"] = lambda: reversal_bound(model, independent, x1, steps=32, paths=8)
    bounds = {}
    for name, estimate in asked.items():
        found = estimate()
        say(f"{name}: {found}")
        bounds[name] = found.ppl, found.ppl_stderr
    drawn = generate(model, flow, n=samples, length=subject.length, steps=128, seed=0)
    hops = Jumps.of(drawn).per_sequence
    bits = metric("entropy_bits").measure(Samples(drawn.tokens.cpu()))
    trained = read_metrics(work / "metrics.jsonl")
    steps = int(subject.recipe["steps"])
    assert subject.tokenizer is not None
    return NetworkNumbers(
        parameters=sum(parameter.numel() for parameter in model.parameters()),  # type: ignore[attr-defined]
        steps=steps,
        tokens=steps * int(subject.recipe["batch"]) * subject.length,
        seconds=float(trained[-1]["seconds"]) if trained else 0.0,
        device=str(machine(choose_device(device))["device"]),
        set=texts.name,
        rows=len(x1),
        bounds=bounds,
        samples={"hops": (hops.value, hops.stderr), "entropy, bits": (bits.value, bits.stderr or 0.0)},
        first=subject.tokenizer.decode(drawn.tokens[0].tolist()),
    )


def card(name: str, recipe: Recipe, numbers: NetworkNumbers, commit: str | None) -> str:
    """The model card as markdown."""
    bounds = "\n".join(f"| {key} | {value:.2f} ± {error:.2f} |" for key, (value, error) in numbers.bounds.items())
    samples = "\n".join(f"| {key} | {value:.2f} ± {error:.2f} |" for key, (value, error) in numbers.samples.items())
    first = "\n".join(f"> {line}" for line in numbers.first.splitlines() if line.strip())
    ot = "exact OT of the batch" if recipe.coupling == "exact" else recipe.coupling
    return f"""# {name}

A discrete flow over {recipe.tokens} tokens that writes English prose of {recipe.length} tokens. It is a small network
for trying out hopflow, not a useful writer.

```console
$ hopflow sample {name} n=2 steps=64
$ hopflow infill {name} "She opened the [MASK:3 words] and looked out."
$ hopflow eval {name} rows=64
```

The commands find it in a clone of the repository. In Python: `hf.from_pretrained("pretrained/{name}")`.

## Training

- Recipe `{recipe.name}`: source {recipe.source}, pairs: {ot}, prediction {recipe.prediction}, {recipe.objective}
- {numbers.parameters:,} parameters ({recipe.size}), stored in bf16, weights averaged with {recipe.weight_ema:g}
- {numbers.steps:,} steps of {recipe.batch} sequences of {recipe.length} tokens ({numbers.tokens / 1e6:,.0f} M tokens),
  learning rate {recipe.lr:g}, {numbers.seconds / 60:.1f} minutes on {numbers.device}, commit {commit or "not stored"}
- Text: {recipe.data}, English books in the public domain; {recipe.holdout:.0%} of them held out

`hopflow reproduce network` trains it again.

## Evaluation

Perplexity bounds per token on {numbers.rows} sequences of {numbers.set} text, ± standard error. Tokens are those of
{recipe.tokens}: values are not comparable with those of other tokenizers.

| bound | perplexity |
|---|---|
{bounds}

Samples of 128 steps with η = 0:

| | per sample |
|---|---|
{samples}

The first sample, uncurated:

{first}

## Limits and license

The books are mostly from before 1930: the network repeats their language and their prejudices. It knows no facts.
The weights are under the Apache-2.0 license of the project; the books are in the public domain.
"""
