"""hopflow config and hopflow list: recipes and settings."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from .command_help import Command, CommandGroup
from .options import Debug
from .output import echo, page_width
from .settings_parser import unread_settings
from .usage_errors import KEY_VALUE

if TYPE_CHECKING:
    from ..recipes import Recipe

app = typer.Typer(help="Show recipes and settings.", cls=CommandGroup)
COLUMNS = ("source", "coupling", "objective", "ot_batch", "ot_ema", "cost")
"""The order of the columns of `hopflow list`; further settings in which recipes differ follow."""
COMMON = ("source", "ot_batch", "cost")
"""Settings in the heading of a table of OT recipes, if all of them have the same value."""
What = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE|FILE|RUN",
        help="A recipe of `hopflow list`, a recipe.toml, a text file, or the folder of a run.",
        show_default=False,
    ),
]

Replacing = Annotated[
    list[str] | None,
    typer.Argument(metavar=KEY_VALUE, help="Settings that replace those of the recipe, such as steps=500."),
]


def list_recipes(debug: Debug = False) -> None:
    """List the recipes: for text files, the paper's runs, and the paper's runs at laptop size."""
    from ..evaluation.text_table import text_table, wrapped_lines
    from ..recipes import named, names
    from ..recipes.paper import LAPTOP
    from ..recipes.text_file import TEXT

    full = [named(name) for name in names() if not name.endswith(LAPTOP)]
    own = [recipe for recipe in full if recipe.name in (default.__name__ for default in TEXT)]
    rows = [(recipe.name, recipe.size, recipe.source, f"{recipe.steps:,}", _batch(recipe)) for recipe in own]
    echo("Recipes of `hopflow train FILE`, on a CPU and on a GPU:\n")
    echo(text_table(("recipe", "size", "source", "steps", "batch"), rows, page_width()) + "\n")
    full = [recipe for recipe in full if recipe not in own]
    groups: dict[tuple[str, str], list[Recipe]] = {}
    for recipe in full:
        groups.setdefault((recipe.data, "" if recipe.coupling == "independent" else recipe.source), []).append(recipe)
    for here in groups.values():
        differing = _differing(here)
        echo("\n".join(wrapped_lines(_heading(here[0], differing), page_width())) + "\n")
        lines = [(recipe.name, *(_cell(recipe, key) for key in differing)) for recipe in here]
        echo(text_table(("recipe", *differing), lines, page_width()) + "\n")
    small = named(full[0].name + LAPTOP)
    echo(
        "\n".join(
            line
            for text in (
                f"Add {LAPTOP} to a name for a small version: size {small.size}, data {small.data}, "
                f"{small.steps:,} steps.",
                f"All settings of a recipe: hopflow config show {full[0].name}{LAPTOP}",
            )
            for line in wrapped_lines(text, page_width())
        )
    )


def _batch(recipe: "Recipe") -> str:
    return f"{recipe.batch} sequences of {recipe.length} tokens"


def _differing(recipes: Sequence["Recipe"]) -> list[str]:
    """The settings in which these recipes differ: the columns of their table."""
    from dataclasses import fields

    names = [key.name for key in fields(recipes[0]) if key.name != "name"]
    found = [name for name in names if len({getattr(recipe, name) for recipe in recipes}) > 1]
    return sorted(found, key=lambda name: COLUMNS.index(name) if name in COLUMNS else len(COLUMNS))


def _heading(recipe: "Recipe", differing: Sequence[str]) -> str:
    """What the recipes of a table have in common."""
    independent = recipe.coupling == "independent"
    common = [key for key in COMMON[: 1 if independent else None] if key not in differing]
    shown = ", ".join([f"{recipe.steps:,} steps", *(f"{key}={_cell(recipe, key)}" for key in ("size", *common))])
    pairs = "independent pairs" if independent else "optimal transport"
    return f"The paper's runs on {recipe.data} with {pairs} ({shown}):"


def _cell(recipe: "Recipe", key: str) -> str:
    """A setting, or "-" where it does not apply: an autoregressive model has no source, exact OT no eps."""
    from .settings_help import as_typed

    value = recipe.ot_batch or recipe.batch if key == "ot_batch" else getattr(recipe, key)
    without_flow = recipe.model == "causal" and key in ("source", "objective")
    if value is None or without_flow or (key == "eps" and recipe.coupling != "sinkhorn"):
        return "-"
    return as_typed(value)


@app.command("show", cls=Command)
def config_show(
    what: What,
    settings: Replacing = None,
    debug: Debug = False,
) -> None:
    """Print all settings of a recipe as TOML, a file that `hopflow train` accepts."""
    from dataclasses import asdict

    from ..recipes import resolve

    for key, value in asdict(resolve(what, unread_settings(settings))).items():
        if value is not None:
            echo(f"{key} = {_toml(value)}")


@app.command("diff", cls=Command)
def config_diff(
    one: What,
    other: What,
    debug: Debug = False,
) -> None:
    """Print the settings in which two recipes differ."""
    from dataclasses import asdict

    from ..recipes import resolve

    left, right = asdict(resolve(one)), asdict(resolve(other))
    for key in left:
        if left[key] != right[key]:
            echo(f"{key}: {_shown(left[key])} | {_shown(right[key])}")


@app.command("keys", cls=Command)
def config_keys(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="Such as train, sample or bench train.", show_default=False),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a markdown table.")] = False,
    debug: Debug = False,
) -> None:
    """List the settings of a command: defaults, allowed values and meaning. Without a command: those of train."""
    from ..evaluation.text_table import wrapped_lines
    from .settings_help import TRAIN, commands, settings_page, settings_table, train_legend

    name = " ".join(command or [TRAIN])
    if markdown:
        echo(settings_table(name), nl=False)
        return
    page = settings_page(name)  # before anything is printed: an unknown command is an error
    if name == TRAIN:
        echo("\n".join(wrapped_lines(train_legend(), page_width())) + "\n")
    echo(page, nl=False)
    if name == TRAIN:
        others = ", ".join(command for command in commands() if command != TRAIN)
        note = f"Settings of other commands: hopflow config keys COMMAND, where COMMAND is {others}."
        echo("\n" + "\n".join(wrapped_lines(note, page_width())))


def _shown(value: str | int | float | bool | None) -> str:
    """A value with all its digits; true, false and none as one types them."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _toml(value: str | int | float | bool) -> str:
    return json.dumps(value, ensure_ascii=False)
