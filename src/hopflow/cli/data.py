"""hopflow data: named corpora, and tokenizing text before training."""

from typing import Annotated

import typer

from .command_help import Command, CommandGroup, CommandWithSettings
from .options import Debug, Json, Offline, Settings
from .output import check_target, echo, page_width, progress_line, show_facts, write_json
from .settings_parser import parse_settings

app = typer.Typer(help="List, download and tokenize texts.", cls=CommandGroup)


@app.command("list", cls=Command)
def data_list(json_file: Json = None, debug: Debug = False) -> None:
    """List the named corpora: license, size, and whether they are on this machine."""
    check_target(json_file)
    from ..data import catalogue
    from ..evaluation.text_table import text_table

    rows = catalogue.entries()
    if json_file:
        write_json(json_file, {"rows": [row.as_json() for row in rows]})
    lines = [
        (row.name, row.what, row.licence, "-" if row.bytes is None else f"{row.bytes:,}", row.where) for row in rows
    ]
    echo(text_table(("name", "content", "license", "bytes", "location"), lines, page_width(), 2))


@app.command("fetch", cls=Command)
def data_fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="shakespeare, sotu or gpt2.", show_default=False)],
    json_file: Json = None,
    offline: Offline = False,
    debug: Debug = False,
) -> None:
    """Download a named corpus or tokenizer into the cache and check its hash."""
    check_target(json_file)
    from ..data import catalogue

    with progress_line() as progress:
        fetched = catalogue.fetch(name, progress, offline)
    if json_file:
        write_json(json_file, fetched)
    show_facts(fetched)


@app.command("prepare", cls=CommandWithSettings)
def data_prepare(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help=(
                "A text file, a folder, - for stdin, a file with one sequence per row (.npy, .npz, .fasta, .smi, "
                ".csv), a name of `hopflow data list`, or hf:NAME."
            ),
            show_default=False,
        ),
    ],
    settings: Settings = None,
    json_file: Json = None,
    offline: Offline = False,
    debug: Debug = False,
) -> None:
    """Tokenize a text into the cache and print what it contains.

    Training with the same tokens, holdout, pack and seed then starts at once."""
    from .command_settings import PrepareSettings

    chosen = parse_settings(settings, PrepareSettings)
    check_target(json_file)
    from ..data import catalogue

    with progress_line() as progress:
        facts = catalogue.prepare(source, progress=progress, offline=offline, **chosen.typed())
    if json_file:
        write_json(json_file, facts)
    show_facts(facts)
