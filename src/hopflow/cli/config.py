"""hopflow config and hopflow list: recipes and their keys."""

import json
from typing import Annotated

import typer

from .output import console, table
from .words import Debug, Settings, parse_keys

app = typer.Typer(help="Look at recipes and their keys.")
What = Annotated[str, typer.Argument(metavar="RECIPE|FILE|RUN", show_default=False)]


def list_recipes(debug: Debug = False) -> None:
    """List the recipes: the paper's runs, and each of them in a laptop's size."""
    from ..recipes import named, names

    shown = ("source", "coupling", "cost", "objective", "size", "data", "steps")
    rows = table("recipe", *shown)
    for name in names():
        recipe = named(name)
        rows.add_row(name, *(str(getattr(recipe, key)) for key in shown))
    console().print(rows)


@app.command("show")
def config_show(
    what: What,
    settings: Settings = None,
    debug: Debug = False,
) -> None:
    """Print a recipe with all its keys, as TOML that `hopflow train` takes."""
    from dataclasses import asdict

    from ..recipes import resolve

    for key, value in asdict(resolve(what, parse_keys(settings or []))).items():
        if value is not None:
            typer.echo(f"{key} = {_toml(value)}")


@app.command("diff")
def config_diff(
    one: What,
    other: What,
    debug: Debug = False,
) -> None:
    """Print the keys in which two recipes differ."""
    from dataclasses import asdict

    from ..recipes import resolve

    left, right = asdict(resolve(one)), asdict(resolve(other))
    for key in left:
        if left[key] != right[key]:
            typer.echo(f"{key}: {left[key]} | {right[key]}")


@app.command("keys")
def config_keys(debug: Debug = False) -> None:
    """List every key, its default, and what it does."""
    from dataclasses import fields

    from ..recipes import Recipe
    from ..training.settings import HELP, ROLE

    rows = table("key", "default", "decides", "what it is")
    for key in fields(Recipe):
        rows.add_row(key.name, str(key.default), key.metadata[ROLE], key.metadata[HELP])
    console().print(rows)


def _toml(value: str | int | float | bool) -> str:
    return json.dumps(value, ensure_ascii=False)
