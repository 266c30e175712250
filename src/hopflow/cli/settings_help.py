"""Lists of settings: below --help, by `hopflow config keys`, and as a markdown table for the documentation."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from ..evaluation.text_table import text_table, wrapped_lines
from ..system.hints import did_you_mean
from .output import page_width

TRAIN = "train"
HEADER = ("setting", "default", "allowed", "meaning")
DEFAULT_WIDTH = 24
"""Columns of the defaults on a terminal; longer ones are wrapped."""
NONE = {
    "ot_batch": "batch",
    "threads": "measured",
    "workers": "as needed",
    "masks": "one per data token; one for mixed",
    "predict_x0": "auto",
    "labels": "auto",
    "init": "random",
    "out": "runs/NAME",
}
"""What the default none of a setting of train means."""
FREE = ("an integer", "a number", "text", "true or false", "a file")
"""Beginnings of what is allowed if a setting is not one of a few words."""
GROUPS = {
    True: "What is learned (a resumed run must keep these, but steps may be raised)",
    False: "How it runs (may change on resume, except the text, predict_x0 and labels)",
}


@dataclass(frozen=True)
class SettingHelp:
    """One setting of a command, in words."""

    name: str
    default: str
    allowed: str
    help: str
    group: str = ""
    """A heading for a part of the settings."""

    @property
    def help_with_choices(self) -> str:
        """The help, with the words to choose from if there are any."""
        free = self.allowed in self.help or self.allowed.startswith(FREE)
        return self.help if free else f"{self.help} [{self.allowed}]"


def commands() -> tuple[str, ...]:
    """The commands that have settings."""
    from .command_settings import COMMANDS

    return (TRAIN, *COMMANDS)


def settings_of(command: str) -> list[SettingHelp]:
    """All settings of a command; those of train are the fields of a recipe."""
    if command == TRAIN:
        return _recipe_settings()
    from .command_settings import COMMANDS
    from .setting_types import allowed

    if command not in COMMANDS:
        hint = did_you_mean(command, commands()) or f"these have settings: {', '.join(commands())}"
        raise ValueError(f"{command!r} is not a command with settings; {hint}")
    found = []
    for name, field in COMMANDS[command].model_fields.items():
        extra: Any = field.json_schema_extra or {}
        found.append(
            SettingHelp(name, extra.get("shown") or as_typed(field.default), allowed(field), field.description or "")
        )
    return found


def settings_list(command: str) -> str:
    """The settings as lines for --help; of train the most used ones."""
    lines = _most_used() if command == TRAIN else settings_of(command)
    listed = aligned([(line.name, f"{line.help_with_choices} (default:\u00a0{line.default})") for line in lines])
    more = "\nAll settings: hopflow config keys train\n"
    return f"Most used settings:\n{listed}{more}" if command == TRAIN else f"Settings:\n{listed}"


def example(command: str) -> str | None:
    """A setting with its default as one types it: the first one with a number, or else the first one with a word."""
    from .command_settings import COMMANDS

    if command == TRAIN:
        first = _most_used()[0]
        return f"{first.name}={first.default}"
    typed: dict[str, Any] = {}
    for name, field in COMMANDS[command].model_fields.items():
        extra: Any = field.json_schema_extra or {}
        value = extra.get("cpu") if field.default is None else field.default
        if value not in (None, ()):
            typed[name] = value
    numbers = [name for name, value in typed.items() if isinstance(value, int | float) and not isinstance(value, bool)]
    chosen = next(iter([*numbers, *typed]), None)
    return None if chosen is None else f"{chosen}={as_typed(typed[chosen])}"


def settings_page(command: str) -> str:
    """The settings as a table for a terminal."""
    lines, parts = settings_of(command), []
    for group in dict.fromkeys(line.group for line in lines):
        table = _wide_meanings([line for line in lines if line.group == group])
        parts.append((f"{group}:\n\n" if group else "") + table + "\n")
    return "\n".join(parts)


def _wide_meanings(lines: list[SettingHelp]) -> str:
    """A table in which long defaults are wrapped first, so that the column of meanings is wide."""
    labels = max(len(line.name) for line in lines)
    default = min(DEFAULT_WIDTH, max(len(line.default) for line in lines))
    meaning = max(20, page_width() - labels - default - 4)
    rows: list[tuple[str, str, str]] = []
    for line in lines:
        cells = wrapped_lines(line.default, default), wrapped_lines(line.help_with_choices, meaning)
        rows += [
            (line.name if place == 0 else "", *pair) for place, pair in enumerate(zip_longest(*cells, fillvalue=""))
        ]
    return text_table(("setting", "default", "meaning"), rows, page_width(), 3)


def settings_table(command: str) -> str:
    """The settings as a markdown table."""
    cells = [(f"`{line.name}`", line.default, line.allowed, line.help) for line in settings_of(command)]
    rows = [HEADER, ("---",) * len(HEADER), *cells]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n" for row in rows)


def train_legend() -> str:
    """Which recipes the defaults of train belong to."""
    return (
        "Defaults: `hopflow train FILE` starts from the recipe text, on a CUDA GPU from text_gpu. "
        "hf.train and a recipe.toml without `base` start from the defaults marked Recipe."
    )


def _recipe_settings() -> list[SettingHelp]:
    from dataclasses import fields
    from typing import get_args

    from ..recipes import Recipe
    from ..recipes.components import FAMILIES, names_to_type
    from ..recipes.recipe import MODELS
    from ..recipes.text_file import TEXT
    from ..training.settings import HELP, RANGE, is_learned
    from .setting_types import WORDS, one_of

    recipes = {recipe.__name__: recipe() for recipe in TEXT} | {"Recipe": Recipe()}
    named: dict[str, tuple[str, ...]] = {key: names_to_type(key) for key in FAMILIES}
    named["model"] = (*MODELS, "package.module:Class")
    found = []
    for key in fields(Recipe):
        values: dict[str, list[str]] = {}
        for name, recipe in recipes.items():
            value = getattr(recipe, key.name)
            shown = NONE.get(key.name) if value is None else None
            values.setdefault(shown or as_typed(value), []).append(name)
        shared = len(values) == 1 or key.name in ("name", "base")
        default = ", ".join(value if shared else f"{value} ({', '.join(of)})" for value, of in values.items())
        kind = next(kind for kind in (*get_args(key.type), key.type) if kind in WORDS)
        limits = key.metadata.get(RANGE)
        in_range = f"{WORDS[kind]} {limits}" if limits else WORDS[kind]
        allowed = one_of(named[key.name]) if key.name in named else in_range
        found.append(SettingHelp(key.name, default, allowed, key.metadata[HELP], GROUPS[is_learned(key)]))
    return sorted(found, key=lambda line: line.group != GROUPS[True])


def _most_used() -> list[SettingHelp]:
    """The most used settings of train, with the defaults for a text file."""
    from .setting_types import one_of
    from .train_help import most_used

    found = []
    for name, cpu, gpu, help, choices in most_used():
        default = NONE[name] if cpu is None else as_typed(cpu)
        default += "" if cpu == gpu else f", on a GPU {as_typed(gpu)}"
        found.append(SettingHelp(name, default, one_of(choices) if choices else "text", help))
    return found


def as_typed(value: Any) -> str:
    """A default as one types it: true, 0,1, none."""
    if isinstance(value, tuple | list):
        return ",".join(map(as_typed, value))
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def aligned(rows: Sequence[tuple[str, str]]) -> str:
    """Two aligned columns, indented; long texts of the second one are wrapped."""
    listed = text_table(("", ""), rows, page_width() - 2).splitlines()[2:]  # without a heading
    return "".join(f"  {line}\n" for line in listed)
