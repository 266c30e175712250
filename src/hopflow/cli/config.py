"""hopflow config and hopflow list: recipes and their keys."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from .output import echo, page_width
from .words import Debug, Settings, parse_keys

if TYPE_CHECKING:
    from ..recipes import Recipe

app = typer.Typer(help="Look at recipes and their keys.")
What = Annotated[str, typer.Argument(metavar="RECIPE|FILE|RUN", show_default=False)]


def list_recipes(debug: Debug = False) -> None:
    """List the recipes: defaults for a text file, the paper's runs, and each of these in a laptop's size."""
    from ..evaluation.text_table import text_table, wrapped_lines
    from ..recipes import named, names
    from ..recipes.paper import LAPTOP
    from ..recipes.text import TEXT

    full = [named(name) for name in names() if not name.endswith(LAPTOP)]
    own = [recipe for recipe in full if recipe.name in (default.__name__ for default in TEXT)]
    rows = [(recipe.name, recipe.size, recipe.source, f"{recipe.steps:,}", _step(recipe)) for recipe in own]
    echo("defaults for a text file, on a CPU and on a GPU:\n")
    echo(text_table(("recipe", "size", "source", "steps", "a step"), rows, page_width()) + "\n")
    full = [recipe for recipe in full if recipe not in own]
    for data in dict.fromkeys(recipe.data for recipe in full):
        here = [recipe for recipe in full if recipe.data == data]
        runs = [(recipe.name, *_flow(recipe)) for recipe in here]
        echo(f"data {data}, size {here[0].size}, {here[0].steps:,} steps:\n")
        echo(text_table(("recipe", "source", "coupling", "cost"), runs, page_width()) + "\n")
    usual = full[0].objective
    others = [f"{recipe.name} {recipe.objective}" for recipe in full if recipe.objective != usual]
    small = named(full[0].name + LAPTOP)
    echo(
        "\n".join(
            line
            for text in (
                f"The objective is {usual}; of {', '.join(others)}.",
                f"Each also as NAME{LAPTOP}: size {small.size}, data {small.data}, {small.steps:,} steps.",
                f"All keys of a recipe: hopflow config show {full[0].name}{LAPTOP}",
            )
            for line in wrapped_lines(text, page_width())
        )
    )


def _step(recipe: "Recipe") -> str:
    return f"{recipe.batch} sequences of {recipe.length} tokens"


def _flow(recipe: "Recipe") -> tuple[str, str, str]:
    """Source, coupling and cost, as far as they matter."""
    if recipe.model == "causal":
        return "- (causal)", "-", "-"
    return recipe.source, recipe.coupling, "-" if recipe.coupling == "independent" else recipe.cost


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
            echo(f"{key} = {_toml(value)}")


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
            echo(f"{key}: {left[key]} | {right[key]}")


@app.command("keys")
def config_keys(debug: Debug = False) -> None:
    """List every key, its default, and what it does."""
    from dataclasses import fields

    from ..evaluation.text_table import text_table
    from ..recipes import Recipe
    from ..training.settings import HELP, ROLE

    for role in dict.fromkeys(key.metadata[ROLE] for key in fields(Recipe)):
        keys = [key for key in fields(Recipe) if key.metadata[ROLE] == role]
        rows = [(key.name, str(key.default), key.metadata[HELP]) for key in keys]
        echo(f"decides {role}:\n")
        echo(text_table(("key", "default", "what it is"), rows, page_width(), 2) + "\n")


def _toml(value: str | int | float | bool) -> str:
    return json.dumps(value, ensure_ascii=False)
