"""Count the files of the package that one training step and one sample run through.

    python tools/trace_files.py

A file counts if at least one of its functions is executed. The training step is a warm step of `hf.train` on the CPU
with workers=0, exact OT and no evaluation or checkpoint, with the Hamming cost and with an embedding cost. The
sample is one warm call of `hf.generate`.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

import torch

import hopflow as hf
from hopflow.data import load
from hopflow.training.trainer import Trainer

PACKAGE = Path(hf.__file__).parent
SIZE = hf.Size(layers=1, width=32, heads=2)


@contextmanager
def tracing(codes: set[CodeType]) -> Iterator[None]:
    """Add the code object of every Python function that is called inside."""

    def trace(frame: FrameType, event: str, argument: object) -> None:
        codes.add(frame.f_code)

    sys.setprofile(trace)
    try:
        yield
    finally:
        sys.setprofile(None)


def files(codes: set[CodeType]) -> list[str]:
    """The files of the package that these functions belong to, without functions that only define a module."""
    paths = {Path(code.co_filename) for code in codes if code.co_name != "<module>"}
    return sorted(str(path.relative_to(PACKAGE)) for path in paths if path.is_relative_to(PACKAGE))


def flow_and_network(text: hf.data.Corpus, cost: hf.SequenceCost) -> tuple[hf.Flow, torch.nn.Module]:
    flow = hf.Flow(hf.BagOfWords.fit(text.counts), coupling=hf.ExactOT(cost))
    return flow, hf.Transformer(flow.vocab, SIZE)


def step_files(text: hf.data.Corpus, cost: hf.SequenceCost) -> list[str]:
    """The files of one training step: from the end of one update to the end of the next."""
    flow, model = flow_and_network(text, cost)
    codes: set[CodeType] = set()
    tracer = tracing(codes)
    update: Callable[..., None] = Trainer.update

    def traced(trainer: Trainer, step: int, *arguments: object, **keys: object) -> None:
        update(trainer, step, *arguments, **keys)
        if step == 4:
            tracer.__enter__()
        if step == 5:
            tracer.__exit__(None, None, None)

    Trainer.update = traced  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory() as folder:
            keys = {"steps": 20, "batch": 8, "eval_rows": 0, "eval_samples": 0, "log_every": 100}
            hf.train(model, flow, text, out=folder, workers=0, device="cpu", threads=1, **keys)
    finally:
        Trainer.update = update  # type: ignore[method-assign]
    return files(codes)


def sample_files(text: hf.data.Corpus) -> list[str]:
    """The files of one call of `hf.generate`."""
    flow, model = flow_and_network(text, hf.Hamming())
    hf.generate(model, flow, n=2, length=16, steps=8, seed=0)
    codes: set[CodeType] = set()
    with tracing(codes):
        hf.generate(model, flow, n=2, length=16, steps=8, seed=1)
    return files(codes)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "text.txt"
        file.write_text("the cat sat on the mat and saw the rat. " * 200, encoding="utf-8")
        text = load(str(file), "char", 16)
        crossed = {
            "training step": step_files(text, hf.Hamming()),
            "training step with an embedding cost": step_files(text, hf.SquaredEmbedding()),
            "sample": sample_files(text),
        }
        for name, found in crossed.items():
            print(f"{name}: {len(found)} files")
            print("".join(f"  {path}\n" for path in found))


if __name__ == "__main__":
    main()
