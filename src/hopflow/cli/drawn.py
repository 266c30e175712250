"""Drawn: sequences as a command has drawn them, what it took, and the files they are written to."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..symbols import harmless
from .output import box, check_target, console, duration
from .sampling_log import speed
from .saved import Saved

if TYPE_CHECKING:
    from torch import Tensor

    from ..generation import Generation

END = "<|endoftext|>"
"""Closes a document in a text file, as hopflow reads them; a test holds it equal to the reader's."""
UNITS = {
    "calls": "network calls per sequence",
    "jumps": "hops per sequence",
    "redraws": "redraws per sequence",
    "sequences_per_s": "sequences per second",
}


@dataclass(frozen=True, eq=False)
class Drawn:
    """Sequences, and what is to be said beside every number on them."""

    texts: list[str]
    tokens: list[list[int]]
    counts: "dict[str, Tensor]"
    """One number for each sequence: calls, and for a flow hops and redraws."""
    how: dict[str, Any]
    """Sampler, steps, eta and the like."""
    saved: Saved
    seconds: float
    rows: Sequence[int]
    """Which these are among those that were asked for."""
    asked: int
    """How many these were; after Ctrl-C there are fewer."""
    prompts: Sequence[dict[str, Any]] = ()
    """What each sequence was asked for, where it was."""

    @classmethod
    def of(
        cls,
        out: "Generation",
        saved: Saved,
        seconds: float,
        chosen: Mapping[str, Any],
        rows: Sequence[int],
        asked: int,
        prompts: Sequence[dict[str, Any]] = (),
    ) -> "Drawn":
        """From what a flow has given, and how it was chosen."""
        return cls(
            out.text(saved.tokenizer, chosen.get("cut", False)),
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
                "seed": chosen.get("seed", 0),
                **{key: chosen[key] for key in ("guidance",) if key in chosen},
                "dtype": out.precision,
            },
            saved,
            seconds,
            rows,
            asked,
            prompts,
        )

    @property
    def interrupted(self) -> bool:
        return len(self.texts) < self.asked

    def lines(self) -> list[str]:
        """One JSON object for each sequence."""
        counts = {name: values.long().tolist() for name, values in self.counts.items()}
        rows = []
        for i, (index, text, tokens) in enumerate(zip(self.rows, self.texts, self.tokens, strict=True)):
            asked = self.prompts[i] if self.prompts else {}
            counted = {name: values[i] for name, values in counts.items()}
            row = {"index": index, **asked, "text": text, "tokens": tokens, **counted, **self.how}
            rows.append(json.dumps(row, ensure_ascii=False, allow_nan=False))
        return rows

    def estimates(self) -> dict[str, tuple[float, float | None]]:
        """The mean of each count and its standard error, of which a single sequence tells nothing."""
        from ..estimate import known, mean_and_error

        found = {name: mean_and_error(values) for name, values in self.counts.items()}
        return {name: (mean, known(error)) for name, (mean, error) in found.items()}

    def as_json(self) -> dict[str, Any]:
        """The numbers, in rows like all of hopflow's, below what they belong to."""
        saved, n = self.saved, len(self.texts)
        run = {"run": str(saved.folder), "recipe_hash": saved.recipe_hash}
        beside = {"n": n, "is_bound": False, "eta": self.how.get("eta"), "steps": self.how.get("steps")}
        numbers = self.estimates()
        if not self.interrupted:  # the time went into others, too
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
        facts |= {"device": str(saved.device), "seconds": self.seconds}
        return {**run, **facts, **self.how, "rows": [{**run, **row, **beside} for row in rows]}

    def summary(self) -> dict[str, str]:
        """What is said at the end, every number with its error and what it depends on."""
        n, (shortest, longest) = len(self.texts), self._lengths()
        tokens = f"{longest}" if shortest == longest else f"{shortest} to {longest}"
        rate = "" if self.interrupted else f", {speed(n / self.seconds)}"
        took = f"in {duration(self.seconds)}{rate} on {self.saved.device}"
        shown = {"sequences": f"{n:,} of {tokens} tokens {took}, {self.how['dtype']}"}
        by = self.how["sampler"] + (f", eta {self.how['eta']:g}" if "eta" in self.how else "")
        for name, (mean, error) in self.estimates().items():
            off = "" if error is None else f" ± {float(f'{error:.2g}'):g}"  # two digits, no exponent
            shown[UNITS[name].partition(" per")[0]] = f"{mean:.2f}{off} per sequence (n={n}, {by})"
        shown["random numbers"] = f"seed {self.how['seed']}{self._unusual()}"
        return shown

    def _unusual(self) -> str:
        """What changes the law of the samples, where something does."""
        plain = {
            "temperature": 1.0,
            "top_k": None,
            "top_p": None,
            "min_p": None,
            "guidance": 1.0,
            "draw": "categorical",
        }
        said = [f"{key} {self.how[key]}" for key, value in plain.items() if self.how.get(key, value) != value]
        return "".join(f", {text}" for text in said)

    def _lengths(self) -> tuple[int, int]:
        sizes = [len(tokens) for tokens in self.tokens]
        return min(sizes), max(sizes)


def check_out(out: Path | None) -> None:
    """Find a target that cannot be written before the work, not after it."""
    if out is None or str(out) == "-":
        return
    if out.suffix not in (".txt", ".jsonl"):
        raise ValueError(f"--out writes .txt (text) or .jsonl (text, tokens and counts), or - for stdout; got {out}")
    check_target(out)


def write(drawn: Drawn, out: Path | None) -> None:
    """To the file, or to stdout."""
    from .. import atomic

    if out is None or str(out) == "-":
        _print(f"\n{END}\n".join(drawn.texts))
    elif out.suffix == ".txt":  # a document ends at the mark, with the line breaks around it
        atomic.write(out, "".join(f"{text}\n{END}\n" for text in drawn.texts).encode())
    else:
        atomic.write(out, "".join(f"{line}\n" for line in drawn.lines()).encode())


def show(drawn: Drawn, out: Path | None) -> None:
    """The summary, on stderr."""
    rows = drawn.summary()
    if out is not None and str(out) != "-":
        rows["written"] = str(out)
    box(console(stderr=True), "drawn", rows)


def _print(text: str) -> None:
    """To a terminal without what would steer it, elsewhere as it is."""
    # not by typer, which takes colours out of what goes into a pipe: here they would be part of a text
    sys.stdout.write((harmless(text, "\n\t") if sys.stdout.isatty() else text) + "\n")
    sys.stdout.flush()
