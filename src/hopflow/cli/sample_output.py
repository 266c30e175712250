"""The samples that a command has drawn: texts, counts, the summary, and the files they are written to."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..system.durations import duration
from ..system.safe_text import harmless
from .output import box, check_target, console
from .sampling_log import speed
from .trained_network import TrainedNetwork

if TYPE_CHECKING:
    from torch import Tensor

    from ..sampling.generation import Generation
    from .command_settings import SampleSettings

END = "<|endoftext|>"
"""Ends a document in a text file, as the reader of text files expects it; a test keeps both equal."""
UNITS = {
    "calls": "network calls per sequence",
    "jumps": "hops per sequence",
    "redraws": "redraws per sequence",
    "sequences_per_s": "sequences per second",
}


@dataclass(frozen=True, eq=False)
class DrawnSamples:
    """Samples with their counts and the settings they were drawn with."""

    texts: list[str]
    tokens: list[list[int]]
    counts: "dict[str, Tensor]"
    """For each sequence: network calls and, for a flow, hops and redraws."""
    how: dict[str, Any]
    """Sampler, steps, eta and other settings."""
    network: TrainedNetwork
    seconds: float
    rows: Sequence[int]
    """Indices of these sequences among those that were asked for."""
    asked: int
    """How many were asked for; after Ctrl-C fewer were drawn."""
    prompts: Sequence[dict[str, Any]] = ()
    """The prompt and the label of each sequence, if there are any."""

    @classmethod
    def of(
        cls,
        out: "Generation",
        network: TrainedNetwork,
        seconds: float,
        settings: "SampleSettings",
        rows: Sequence[int],
        asked: int,
        prompts: Sequence[dict[str, Any]] = (),
    ) -> "DrawnSamples":
        """From the samples of a flow."""
        return cls(
            out.text(network.tokenizer, settings.cut),
            [row.tolist() for row in out.rows()],
            {"calls": out.calls.cpu(), "jumps": out.jumps.cpu(), "redraws": out.redraws.sum(1).cpu()},
            {
                "sampler": out.sampler.label,
                "steps": out.steps,
                "eta": out.eta,
                "temperature": out.filter.temperature,
                "top_k": out.filter.top_k,
                "top_p": out.filter.top_p,
                "min_p": out.filter.min_p,
                "draw": out.draw,
                "seed": settings.seed,
                **{key: value for key, value in settings.typed().items() if key == "guidance"},
                "dtype": out.precision,
            },
            network,
            seconds,
            rows,
            asked,
            prompts,
        )

    @property
    def interrupted(self) -> bool:
        return len(self.texts) < self.asked

    def lines(self) -> list[str]:
        """A JSON object for each sequence."""
        counts = {name: values.long().tolist() for name, values in self.counts.items()}
        rows = []
        for i, (index, text, tokens) in enumerate(zip(self.rows, self.texts, self.tokens, strict=True)):
            asked = self.prompts[i] if self.prompts else {}
            counted = {name: values[i] for name, values in counts.items()}
            row = {"index": index, **asked, "text": text, "tokens": tokens, **counted, **self.how}
            rows.append(json.dumps(row, ensure_ascii=False, allow_nan=False))
        return rows

    def estimates(self) -> dict[str, tuple[float, float | None]]:
        """The mean of each count and its standard error (None for a single sequence)."""
        from ..bounds.estimate import known, mean_and_error

        found = {name: mean_and_error(values) for name, values in self.counts.items()}
        return {name: (mean, known(error)) for name, (mean, error) in found.items()}

    def as_json(self) -> dict[str, Any]:
        """The numbers as rows, with the run and the settings they belong to."""
        network, n = self.network, len(self.texts)
        run = {"run": str(network.folder), "recipe_hash": network.recipe_hash}
        sampler = {"n": n, "is_bound": False, "eta": self.how.get("eta"), "steps": self.how.get("steps")}
        numbers = self.estimates()
        if not self.interrupted:  # the time includes sequences that were not finished
            numbers["sequences_per_s"] = n / self.seconds, None
        rows = [
            {
                "quantity": name,
                "value": value,
                "stderr": error,
                "unit": UNITS[name],
                "set": None,
                "dtype": self.how["dtype"],
            }
            for name, (value, error) in numbers.items()
        ]
        shortest, longest = self._lengths()
        facts: dict[str, Any] = {"n": n, "asked": self.asked, "shortest": shortest, "longest": longest}
        facts |= {"device": str(network.device), "seconds": self.seconds}
        return {**run, **facts, **self.how, "rows": [{**run, **row, **sampler} for row in rows]}

    def summary(self) -> dict[str, str]:
        """The summary: every number with its error and the settings it depends on."""
        from ..network.label_names import listed

        n, (shortest, longest) = len(self.texts), self._lengths()
        tokens = f"{longest}" if shortest == longest else f"{shortest} to {longest}"
        rate = "" if self.interrupted else f", {speed(n / self.seconds)}"
        took = f"in {duration(self.seconds)}{rate} on {self.network.device}"
        shown = {"sequences": f"{n:,} of {tokens} tokens {took}, {self.how['dtype']}"}
        by = self.how["sampler"] + (f", η = {self.how['eta']:g}" if "eta" in self.how else "")
        for name, (mean, error) in self.estimates().items():
            off = "" if error is None else f" ± {float(f'{error:.2g}'):g}"  # two digits, no exponent
            shown[UNITS[name].partition(" per")[0]] = f"{mean:.2f}{off} per sequence (n={n}, {by})"
        labels = list(dict.fromkeys(str(asked["label"] or "none") for asked in self.prompts if "label" in asked))
        if labels:
            shown["labels"] = listed(labels)
        shown["settings"] = f"seed {self.how['seed']}{self._unusual()}"
        return shown

    def _unusual(self) -> str:
        """Settings that change the distribution of the samples."""
        plain = {
            "temperature": 1.0,
            "top_k": None,
            "top_p": None,
            "min_p": None,
            "guidance": 1.0,
            "draw": "categorical",
        }
        shown = [f"{key} {self.how[key]}" for key, value in plain.items() if self.how.get(key, value) != value]
        return "".join(f", {text}" for text in shown)

    def _lengths(self) -> tuple[int, int]:
        sizes = [len(tokens) for tokens in self.tokens]
        return min(sizes), max(sizes)


def label_facts(network: TrainedNetwork, labels: "Tensor | None", rows: Sequence[int]) -> list[dict[str, Any]]:
    """What is stored with each sequence of a network with labels: its label."""
    return [] if labels is None else [{"label": network.label_name(int(labels[row]))} for row in rows]


def check_out(out: Path | None) -> None:
    """Refuse a file that cannot be written before the work begins."""
    if out is None or str(out) == "-":
        return
    if out.suffix not in (".txt", ".jsonl"):
        raise ValueError(f"--out writes .txt (text) or .jsonl (text, tokens and counts), or - for stdout, got {out}")
    check_target(out)


def write(drawn: DrawnSamples, out: Path | None) -> None:
    """Write the texts to the file, or print them on stdout."""
    from ..system import atomic

    if out is None or str(out) == "-":
        _print(f"\n{END}\n".join(drawn.texts))
    elif out.suffix == ".txt":  # the reader drops the line breaks around the end mark
        atomic.write(out, "".join(f"{text}\n{END}\n" for text in drawn.texts).encode())
    else:
        atomic.write(out, "".join(f"{line}\n" for line in drawn.lines()).encode())


def show(drawn: DrawnSamples, out: Path | None) -> None:
    """Print the summary on stderr."""
    rows = drawn.summary()
    if out is not None and str(out) != "-":
        rows["written"] = str(out)
    box(console(stderr=True), "samples", rows)


def _print(text: str) -> None:
    """Print on stdout; control characters are replaced only on a terminal."""
    # typer.echo would remove color codes from a pipe, and here they are part of the text
    sys.stdout.write((harmless(text, "\n\t") if sys.stdout.isatty() else text) + "\n")
    sys.stdout.flush()
