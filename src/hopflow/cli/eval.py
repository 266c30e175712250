"""hopflow eval."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from .output import check_target, echo, page_width, progress_line, write_json
from .report import afterwards
from .saved import threads
from .words import (
    Debug,
    Json,
    Offline,
    Settings,
    at_least_one,
    batch_size,
    one_of,
    parse_settings,
    real_number,
    truth,
    whole_number,
    whole_numbers,
)


def evaluate(
    run: Annotated[str, typer.Argument(metavar="RUN", show_default=False)],
    settings: Settings = None,
    json_file: Json = None,
    offline: Offline = False,
    debug: Debug = False,
) -> None:
    """Measure a run: bounds on its held-out text or on data=…, and what its samples are like; each with its error.

    The rows are added to RUN/eval.json and RUN/eval.md. Settings: data=FILE|SET (may be given several times: lambada,
    wikitext-2, ptb, wikitext-103, lm1b of HOPFLOW_DATA), judge=smollm2|FOLDER|RUN, steps=32 (or 8,16,…), eta=0,1,
    temperature=1, n=64, gen=true, transport=true, retokenise=true, coupling=exact|sinkhorn|none, ot_n=64, eps=0.01,
    detokenise=auto, length, error=0.01, seconds=60 (for the bounds of a set), rows, draws=8,
    paths=8 (of br; 0 = no br), batch, seed=0, device=auto, threads (of a CPU; as in training),
    precision=auto (or float32, bf16).
    """
    words = settings or []
    texts = tuple(word.removeprefix("data=") for word in words if word.startswith("data="))
    chosen = parse_settings([word for word in words if not word.startswith("data=")], READERS)
    chosen |= {"data": _texts(texts)} if texts else {}
    check_target(json_file)
    from ..evaluation import record
    from ..evaluation.likelihood import refusals
    from ..evaluation.subject import Subject
    from ..evaluation.suite import Suite
    from ..evaluation.table import page
    from ..network import home
    from ..pretrained import newest
    from ..training.folder import is_run

    folder, rows, remarks = Path(run), [], []
    try:
        with progress_line() as progress:
            progress(f"reading {run}")
            subject = Subject.load(run, chosen.pop("device", "auto"))
            record.check(folder)  # what cannot be kept is found before the work, not after it
            remarks = refusals(subject.flow)
            suite = Suite.of({key: value for key, value in chosen.items() if key != "threads"})
            where, asked = home(subject.model), chosen.get("threads")
            with threads(newest(folder), subject.model, subject.flow, subject.length, where, asked):
                for row in suite.run(subject, offline=offline, progress=progress):
                    rows.append(row)
    finally:  # what was measured is shown and kept, whatever happens to the rest
        if rows or remarks:
            echo(page(rows, remarks, page_width()), nl=False)
        if is_run(folder) and rows:
            record.keep(folder, rows, remarks)
        if json_file and rows:
            write_json(json_file, {"rows": [row.as_json() for row in rows]})
    if is_run(folder):
        echo(f"\nall numbers: {folder / record.FILE}, {folder / record.PAGE}", err=True)
        afterwards([folder])


def _texts(texts: tuple[str, ...]) -> tuple[str, ...]:
    if "" in texts:
        raise ValueError("setting 'data=': a file or the name of a set is expected, e.g. data=lambada")
    if len(set(texts)) < len(texts):
        twice = next(text for text in texts if texts.count(text) > 1)
        raise ValueError(f"setting 'data={twice}' is given twice")
    return texts


def _number(text: str) -> float:
    if real_number(text) < 0:
        raise ValueError("a number from 0 on is expected, e.g. 0.5")
    return float(text)


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(_number(part) for part in text.split(","))


def _steps(text: str) -> tuple[int, ...]:
    if not all(1 <= steps <= 1 << 20 for steps in whole_numbers(text)):
        raise ValueError("steps from 1 to 1048576 between commas are expected, e.g. 8,16,32")
    return whole_numbers(text)


def _detokeniser(text: str) -> str:
    return {"none": "as is"}.get(text) or one_of("auto", "none", "words", "wikitext")(text)


READERS: dict[str, Callable[[str], Any]] = {
    "judge": str,
    "steps": _steps,
    "eta": _numbers,
    "temperature": _numbers,
    "n": batch_size,
    "gen": truth,
    "transport": truth,
    "retokenise": truth,
    "coupling": one_of("own", "exact", "sinkhorn", "none"),
    "ot_n": batch_size,
    "eps": _number,
    "detokenise": _detokeniser,
    "length": batch_size,
    "error": _number,
    "seconds": _number,
    "rows": whole_number,
    "draws": batch_size,
    "paths": whole_number,
    "batch": batch_size,
    "seed": whole_number,
    "device": str,
    "threads": at_least_one,
    "precision": one_of("auto", "float32", "bf16"),
}
