"""Importing what the user has typed, `package.module:name`."""

import importlib
import sys
from pathlib import Path
from typing import Any


def split_typed(text: str, setting: str, form: str) -> tuple[str, str]:
    """The module and the name of `package.module:name`; `form` is how the message writes it."""
    module, colon, name = text.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        raise ValueError(f"{setting}={text} is not a {form.rpartition(':')[2].lower()}: write {setting}={form}")
    return module, name


def import_typed(module: str, text: str, setting: str) -> Any:
    """Import a module; the current directory is searched after all installed packages.

    Call this only with text that the user has typed, never with text from a file: importing a module runs its code.
    """
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.append(here)
    try:
        importlib.invalidate_caches()
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = f"there is no module {error.name}" if error.name else str(error)
        advice = "Run hopflow in the folder that contains the module, or install its package."
        raise ValueError(f"{setting}={text} cannot be imported: {missing}. {advice}") from None
    except Exception as error:  # the module's own code may raise anything
        raise ValueError(f"{setting}={text} cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        if added:
            sys.path.remove(here)
