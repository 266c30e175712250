"""How long training steps wait for couplings: `mini`, 256 rows, multimask, exact OT in embedding space, on a GPU.

    python tools/ot_wait.py                        # the default settings
    python tools/ot_wait.py workers=1 ahead=4      # other keys of hf.Settings
    python tools/ot_wait.py --cost hamming

Prints the time of a step with couplings and with independent pairs, the part of the time that the steps waited for
couplings, and the part that the trainer spent in the calls for pairs altogether (drawing, sending, waiting).
"""

import argparse
import time
from dataclasses import replace

import torch

import hopflow as hf
from hopflow.models import Transformer
from hopflow.runs.ot_batch import Share
from hopflow.training.settings import Settings
from hopflow.training.tasks import FlowTask
from hopflow.training.trainer import Trainer

COSTS = {"squared_embedding": hf.SquaredEmbedding(), "hamming": hf.Hamming()}


class Text:
    """Random tokens."""

    test_keep = None

    def __init__(self, tokens: int, length: int) -> None:
        self.vocab_size, self.length = tokens, length
        self.identity = {"tokens": tokens}
        self.test = torch.zeros(0, length, dtype=torch.int64)

    def batch(self, seed, start, count):
        generator = torch.Generator().manual_seed(seed + start)
        return torch.randint(0, self.vocab_size, (count, self.length), generator=generator)

    def keep(self, seed, start, count):
        return None

    def decode(self, tokens):
        return ""


def measure(flow, text, settings: Settings, size: str, device: torch.device, warm: int, steps: int) -> dict:
    """Of `steps` steps after `warm` ones, in which workers start and, if the settings allow, are added."""
    torch.manual_seed(0)
    model = Transformer(flow.vocab, size).to(device)
    task = FlowTask(model, flow, text, settings, Share())
    trainer = Trainer(model, task, settings, device, Share())
    own, plain = [0.0], task._pairing.step

    def step(*given):
        started = time.perf_counter()
        found = plain(*given)
        own[0] += time.perf_counter() - started
        return found

    task._pairing.step = step
    waited, updates = 0.0, max(1, (settings.ot_batch or settings.batch) // settings.batch)
    task.wait_until_ready()
    try:
        for number in range(warm + steps):
            if number == warm:
                trainer.settle()
                own[0] = waited = 0.0
                started = time.perf_counter()
            trainer.update(number)
            if number % updates == 0:
                waited += task._pairing.report(number).seconds_waited
        trainer.settle()
        seconds = time.perf_counter() - started
        crew = task._pairing._shared.pool
        workers = len(crew.workers) if crew else 0
    finally:
        task.close()
    return {"ms": 1e3 * seconds / steps, "waited": waited / seconds, "calls": own[0] / seconds, "workers": workers}


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("settings", nargs="*", help="keys of hf.Settings, such as workers=1")
    words.add_argument("--cost", choices=COSTS, default="squared_embedding")
    words.add_argument("--size", default="mini")
    words.add_argument("--device", default="cuda")
    words.add_argument("--tokens", type=int, default=5000)
    words.add_argument("--length", type=int, default=128)
    words.add_argument("--warm", type=int, default=300)
    words.add_argument("--steps", type=int, default=300)
    given = words.parse_args()
    keys = {key: int(value) for key, _, value in (word.partition("=") for word in given.settings)}
    settings = Settings(**{"batch": 256, "ot_ema": 0.99999, "device": given.device, "steps": 10**6, **keys})
    text = Text(given.tokens, given.length)
    vocab = hf.Vocab(given.tokens, given.tokens)
    flow = hf.Flow(hf.MultiMask(vocab), coupling=hf.ExactOT(COSTS[given.cost]))
    where = torch.device(given.device)
    for name, used in (("independent", replace(flow, coupling=hf.Independent())), (given.cost, flow)):
        found = measure(used, text, settings, given.size, where, given.warm, given.steps)
        print(
            f"{name:18s} {found['ms']:7.2f} ms a step   waited {found['waited']:6.2%}   "
            f"calls for pairs {found['calls']:6.2%}   {found['workers']} workers",
            flush=True,
        )


if __name__ == "__main__":
    main()
