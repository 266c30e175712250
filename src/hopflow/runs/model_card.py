"""The model card of a network on the hub: evaluation rows, recipe, how to load and how to cite it."""

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from ..bounds.estimate import plus_minus
from ..system.safe_text import harmless

Row = Mapping[str, Any]
"""A row of eval.json."""
LONGEST = 80
"""Characters of a text from a file that a cell of a table shows."""
LOCAL = ("out", "device", "threads", "workers", "keep", "save_every", "save_minutes", "log_every")
"""Keys of a recipe that say where and how a run was computed, and nothing about the network."""
PATHS = ("data", "init")
"""Keys of a recipe that may be paths of the machine: only their last part is shown."""
PAPER = """@inproceedings{haxholli2026minibatch,
  title     = {Minibatch Optimal Transport and Perplexity Bound Estimation in Discrete Flow Matching},
  author    = {Haxholli, Etrit and Gurbuz, Yeti Z. and Can, Ogul and Waxman, Eli},
  booktitle = {Proceedings of the International Conference on Machine Learning (ICML)},
  year      = {2026}
}"""


def model_card(
    name: str, config: Mapping[str, Any], rows: Sequence[Row], *, parameters: int, license: str | None = None
) -> str:
    """README.md of a repository: metadata for the hub, then a page of text."""
    kind = _cell(config["model"].get("class") or config["model"].get("kind"))
    flow = config["flow"]
    what = "An autoregressive network" if flow is None else "A discrete flow on text"
    parts = [
        f"---\n{_metadata(name, rows, license)}---",
        f"# {name}",
        f"{what}, trained with hopflow: {kind}, {parameters:,} parameters.",
        "## Use",
        *_use(name, config),
        "## Evaluation",
        *_evaluation(rows),
        "## Training",
        *_training(config),
        "## Citation",
        f"hopflow implements this paper:\n\n```bibtex\n{PAPER}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _metadata(name: str, rows: Sequence[Row], license: str | None) -> str:
    """The YAML of the card; the hub's package writes it."""
    from huggingface_hub import EvalResult, ModelCardData

    results = [
        EvalResult(
            task_type="text-generation",
            dataset_type=str(row["set"]),
            dataset_name=str(row["set"]),
            metric_type="perplexity" if row["unit"] == "ppl" else str(row["quantity"]),
            metric_name=f"{row['quantity']}, {_kind(row)}, {row.get('sampler', '-')}",
            metric_value=row["value"],
            metric_args={key: row[key] for key in ("stderr", "n", "unit", "eta", "steps", "seed") if key in row},
        )
        for row in rows
        if row["value"] is not None
    ]
    data = ModelCardData(
        library_name="hopflow",
        license=license,
        pipeline_tag="text-generation",
        tags=["discrete-flow-matching"],
        model_name=name if results else None,
        eval_results=results or None,
    )
    return data.to_yaml() + "\n"


def _use(name: str, config: Mapping[str, Any]) -> list[str]:
    commands = ["pip install 'hopflow[hub]'", f"hopflow sample hub:{name}"]
    shell = "```console\n" + "".join(f"$ {command}\n" for command in commands) + "```"
    lines = ["import hopflow as hf", "", f'saved = hf.from_pretrained("{name}")']
    own = config["model"].get("kind") == "custom"
    notes = ["The class of this network is not part of hopflow: pass it as `model_class=`."] if own else []
    if config["flow"] is not None and not own:
        length = (config["recipe"] or {}).get("length")
        length = length if isinstance(length, int) else 128
        lines += [f"out = hf.generate(saved.model, saved.flow, n=4, length={length}, steps=32)"]
        lines += ['print(*out.text(saved.tokenizer), sep="\\n")'] if config["tokenizer"] is not None else []
    python = "```python\n" + "\n".join(lines) + "\n```"
    return [shell, python, *notes, "The repository has safetensors and JSON only; loading it runs no code from it."]


def _evaluation(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return ["Not evaluated; `hopflow eval` measures perplexity bounds and the quality of samples."]
    bounds = [row for row in rows if row["unit"] == "ppl"]
    others = [row for row in rows if row["unit"] != "ppl"]
    parts = []
    if bounds:
        head = ["text", "quantity", "perplexity", "n", "is", "bounds the sampler with"]
        lines = [[*_start(row), f"{row['n']:,}", _kind(row), row.get("sampler", "-")] for row in bounds]
        parts += [
            _table(head, lines),
            "A perplexity is an upper bound unless it is exact. Each bounds the sampler in its line; bounds of other "
            "samplers are not comparable with it. ± is the standard error over n sequences.",
        ]
    if others:
        head = ["set", "quantity", "value", "unit", "n", "sampler"]
        parts.append(
            _table(head, [[*_start(row), row["unit"], f"{row['n']:,}", row.get("sampler", "-")] for row in others])
        )
    return parts


def _start(row: Row) -> list[str]:
    value, error = row["value"], row["stderr"]
    shown = "infinite" if value is None else plus_minus(value, float("nan") if error is None else error)
    return [row["set"], row["quantity"], shown]


def _kind(row: Row) -> str:
    return "exact" if row.get("exact") else "a bound" if row["is_bound"] else "not a bound"


def _training(config: Mapping[str, Any]) -> list[str]:
    flow = config["flow"]
    parts = (
        []
        if flow is None
        else [_table(["part of the flow", "value"], [[key, _plain(flow[key])] for key in flow if key != "kind"])]
    )
    recipe = {key: value for key, value in (config["recipe"] or {}).items() if key not in LOCAL and value is not None}
    if not recipe:
        return [*parts, "The recipe was not saved."]
    shown = [[key, PurePath(str(value)).name if key in PATHS else _plain(value)] for key, value in recipe.items()]
    return [*parts, _table(["setting", "value"], shown)]


def _plain(value: Any) -> str:
    """A component as `Kind(argument=value)`; other values as they are."""
    if not isinstance(value, Mapping):
        return str(value)
    rest = ", ".join(f"{key}={_plain(item)}" for key, item in value.items() if key != "kind")
    return f"{value.get('kind', '')}({rest})"


def _table(head: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    rows = ["| " + " | ".join(map(_cell, line)) + " |" for line in [head, *lines]]
    return "\n".join([rows[0], "|" + "---|" * len(head), *rows[1:]])


def _cell(value: Any) -> str:
    """Text from a file as the content of a cell: one line without markup."""
    text = harmless(str(value))
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
    for character in "\\`*_[]<>|":
        text = text.replace(character, f"\\{character}")
    return text
