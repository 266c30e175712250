"""Options that several commands share: --json, --offline, --debug, and the arguments written key=value."""

from pathlib import Path
from typing import Annotated

import typer

from .usage_errors import KEY_VALUE

Settings = Annotated[
    list[str] | None,
    typer.Argument(metavar=KEY_VALUE, help="Settings, listed below.", show_default=False),
]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the result to FILE as JSON.")]
Offline = Annotated[bool, typer.Option("--offline", help="Do not download anything; fail if a file is missing.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
