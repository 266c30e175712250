"""Measure the reversal bound beside the other bounds, or how long it takes. One JSON line per number.

python tools/reversal_study.py morse --out runs/reversal        # the demo's networks, K = 1, 8, 64
python tools/reversal_study.py run RUN --data FILE              # any run, on rows of a text
python tools/reversal_study.py speed --device cuda              # a new `small` bag-of-words network
python tools/reversal_study.py trained --rows 400 --paths 8     # small networks beside the exact values
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import hopflow as hf
import reversal_toy
from hopflow import demo
from hopflow.bounds.estimate import Estimate
from hopflow.bounds.reversal_estimate import ReversalEstimate


def line(**content: Any) -> None:
    print(json.dumps(content), flush=True)


def shown(estimate: Estimate, **more: Any) -> None:
    """A bound as one line."""
    line(
        quantity=estimate.quantity,
        ppl=round(estimate.ppl, 5),
        ppl_stderr=round(estimate.ppl_stderr, 5),
        ppl_draw_stderr=round(estimate.ppl * estimate.draw_stderr / estimate.length, 5),
        nats=round(estimate.nats, 4),
        eta=estimate.eta,
        calls=estimate.calls,
        n=estimate.n,
        dtype=estimate.dtype,
        **more,
    )


def timed(name: str, estimate: Any) -> None:
    """The estimate, printed with its seconds of a clock and of CPUs."""
    start, cpu = time.perf_counter(), time.process_time()
    found = estimate()
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    shown(found, run=name, seconds=round(seconds, 2), cpu_seconds=round(cpu, 2))


def lowered(found: ReversalEstimate, few: int) -> dict[str, float]:
    """By how much all paths lower the perplexity, compared with groups of `few` of them; on the same weights."""
    groups = found.log_weights.unflatten(1, (-1, few)).logsumexp(2) - math.log(few)
    each = (found.log_weights.logsumexp(1) - math.log(found.paths) - groups.mean(1)) / found.length
    error = found.ppl * float(each.std()) / math.sqrt(len(each))
    return {"few": few, "difference": round(found.ppl * math.expm1(float(each.mean())), 5), "stderr": round(error, 5)}


def bounds(name: str, model: Any, flow: hf.Flow, x1: Tensor, arguments: argparse.Namespace) -> None:
    """b0, b1, bk and bn, then br for every number of paths from one set of weights."""
    how = {"draws": arguments.draws, "seed": 2}
    if flow.prediction.has_finite_bounds(flow.source):
        timed(name, lambda: hf.nll_bound(model, flow, x1, eta=0, **how))
        timed(name, lambda: hf.nll_bound(model, flow, x1, eta=1, **how))
        if flow.source.full:
            timed(name, lambda: hf.kappa_bound(model, flow, x1, **how))
    timed(name, lambda: hf.nll_bound(model, flow, x1, steps=arguments.steps, **how))
    for gamma in arguments.gamma:
        start, cpu = time.perf_counter(), time.process_time()
        found = hf.reversal_bound(
            model, flow, x1, steps=arguments.steps, paths=arguments.paths, gamma=gamma, eta=arguments.eta, seed=3
        )
        seconds, cpu = round(time.perf_counter() - start, 2), round(time.process_time() - cpu, 2)
        for paths, estimate in found.by_paths.items():
            shown(estimate, run=name, steps=arguments.steps, paths=paths, gamma=gamma)
        line(
            run=name,
            quantity="weights",
            seconds=seconds,
            cpu_seconds=cpu,
            log_weight_sd=found.log_weight_sd,
            effective_paths=found.effective_paths,
            remark=found.remark,
        )
        for few in (paths for paths in (1, 8) if found.paths > paths and found.paths % paths == 0):
            line(run=name, quantity="br lowered by paths", paths=found.paths, **lowered(found, few))


def certificate(name: str, model: Any, flow: hf.Flow, length: int, arguments: argparse.Namespace) -> None:
    """Both sides on samples of the model."""
    for estimate in hf.reversal_certificate(
        model, flow, n=arguments.rows, length=length, steps=arguments.steps, paths=arguments.paths, eta=arguments.eta
    ):
        shown(estimate, run=name, of="samples", paths=arguments.paths)


def morse(arguments: argparse.Namespace) -> None:
    """The two networks of `hopflow demo`, trained here unless their folders exist."""
    corpus = demo.text(arguments.offline, print)
    for name in demo.COUPLINGS:
        folder = Path(arguments.out) / name
        keys = demo.recipe(name, corpus)
        flow = demo.flow_of(keys, corpus.counts)
        if not folder.exists():
            torch.manual_seed(keys.seed)
            demo.train(hf.Convolutional(flow.vocab, keys.size), flow, corpus, out=folder, settings=keys)
        measured(name, hf.from_pretrained(folder, device=arguments.device), corpus.test, arguments)


def run(arguments: argparse.Namespace) -> None:
    found = hf.from_pretrained(arguments.run, device=arguments.device)
    corpus = hf.data.load(arguments.data, tokens=arguments.tokens, length=arguments.length)
    measured(arguments.run, found, corpus.test, arguments)


def measured(name: str, found: Any, test: Tensor, arguments: argparse.Namespace) -> None:
    x1 = test[: arguments.rows].to(arguments.device)
    bounds(name, found.model, found.flow, x1, arguments)
    if arguments.certificate:
        certificate(name, found.model, found.flow, x1.shape[1], arguments)


def speed(arguments: argparse.Namespace) -> None:
    """A new network costs what a trained one does."""
    count, device = arguments.vocab, torch.device(arguments.device)
    weights = 1 / torch.arange(1, count + 1, dtype=torch.float64)
    vocab = hf.Vocab(count)
    source = hf.BagOfWords(vocab, tuple((weights / weights.sum()).tolist()))
    torch.manual_seed(0)
    model, flow = hf.Transformer(vocab, arguments.size).to(device), hf.Flow(source)
    x1 = source.sample(arguments.rows, arguments.length, generator=torch.Generator().manual_seed(1)).to(device)
    hf.reversal_bound(model, flow, x1[:8], steps=4, paths=1)  # kernels are compiled at their first use
    for what, call in {
        "b0": lambda: hf.nll_bound(model, flow, x1, draws=arguments.draws),
        "br": lambda: hf.reversal_bound(model, flow, x1, steps=arguments.steps, paths=arguments.paths),
    }.items():
        start = time.perf_counter()
        found = call()
        seconds = time.perf_counter() - start
        shown(found, run=f"speed {what}", seconds=round(seconds, 2), rows=arguments.rows, steps=arguments.steps)


def trained(arguments: argparse.Namespace) -> None:
    """Networks on an enumerable law, with the excess of each bound over the exact value."""
    for name in arguments.coupling or reversal_toy.COUPLINGS:
        for content in reversal_toy.measure(name, arguments):
            line(**content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("morse", "run", "speed", "trained"))
    parser.add_argument("run", nargs="?", help="folder of a run, for `run`")
    parser.add_argument("--out", default="runs/reversal_study")
    parser.add_argument("--data", default="shakespeare")
    parser.add_argument("--tokens", default="morse")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rows", type=int, default=48)
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--paths", type=int, default=64)
    parser.add_argument("--gamma", type=float, nargs="+", default=[1.0])
    parser.add_argument("--eta", type=float, default=0.0)
    parser.add_argument("--draws", type=int, default=16)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", default="small")
    parser.add_argument("--vocab", type=int, default=50_257)
    parser.add_argument("--offline", action="store_true")
    parser.add_argument("--certificate", action="store_true", help="also bound samples of the model from both sides")
    parser.add_argument("--coupling", nargs="+", choices=tuple(reversal_toy.COUPLINGS), help="for `trained`")
    parser.add_argument("--train-steps", type=int, default=4000, help="for `trained`: optimizer steps")
    parser.add_argument("--tables", type=int, default=60_000, help="for `trained`: OT batches that are counted")
    parser.add_argument("--toy-steps", type=int, nargs="+", default=[32, 128], help="for `trained`: sampler steps")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    {"morse": morse, "run": run, "speed": speed, "trained": trained}[arguments.what](arguments)


if __name__ == "__main__":
    main()
