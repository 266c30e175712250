"""Messages for words of a command line that are missing, in the wrong place or written as options."""

import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

OPTION, KEY_VALUE = "--", "KEY=VALUE"
TRAIN_SETTINGS = ("train", "config show")
"""Commands with the settings of a recipe."""


def usage_message(error: Any, words: Sequence[str]) -> str:
    """What to print for a usage error of typer: what is wrong, and where to read more."""
    ctx: Any = getattr(error, "ctx", None)
    path = getattr(ctx, "command_path", "hopflow")
    help = f"see `{path} --help`"
    settings = setting_names(path.partition(" ")[2])
    if settings:
        help += "; settings are written key=value"
    if type(error).__name__ == "MissingParameter" and error.param is not None and error.param.help:
        name, required = error.param.metavar, _required(ctx.command, ctx)
        return f"{name} is missing: {path} {' '.join(required)}\n{name}: {error.param.help}\n{help}"
    if hasattr(getattr(ctx, "command", None), "list_commands") and error.message == "Missing command.":
        from .setting_types import one_of

        return f"{path} needs a command: {one_of(tuple(ctx.command.list_commands(ctx)))}\n{help}"
    option = getattr(error, "option_name", None) or ""
    name = option.lstrip("-").replace("-", "_")
    if type(error).__name__ == "NoSuchOption" and name in settings:
        return f"{option} is a setting, not an option: type {name}={_typed_value(option, words)}\n{help}"
    return f"{error.format_message()}\n{help}"


def check_arguments(command: Any, ctx: Any) -> None:
    """Raise a ValueError if a required argument is empty, or if a setting or an option is typed in the wrong way."""
    params = command.get_params(ctx)
    settings = setting_names(ctx.command_path.partition(" ")[2])
    arguments = [param for param in params if param.param_type_name == "argument"]
    words = [str(word) for param in arguments if param.nargs != 1 for word in ctx.params.get(param.name) or ()]
    options = {name.lstrip("-"): param for param in params for name in param.opts if name.startswith(OPTION)}
    only_settings = any(param.metavar == KEY_VALUE for param in arguments)
    for word in words:
        key, equals, text = word.partition("=")
        name = key.replace("_", "-")
        if key not in settings and name in options and (equals or only_settings):
            value = "" if options[name].is_flag else f" {shlex.quote(text) if text else options[name].metavar}"
            raise ValueError(f"{key} is an option of this command: type {OPTION}{name}{value}")
    for param in arguments:
        word = ctx.params.get(param.name)
        if not (param.required and isinstance(word, str)):
            continue
        if not word.strip():
            raise ValueError(f"{param.metavar} is empty: type {ctx.command_path} {' '.join(_required(command, ctx))}")
        key, equals, _ = word.partition("=")
        if equals and key in settings and not Path(word).exists():
            target = next((shlex.quote(other) for other in words if "=" not in other), param.metavar)
            raise ValueError(
                f"settings come after {param.metavar}: type {ctx.command_path} {target} {shlex.quote(word)}"
            )


def setting_names(command: str) -> Collection[str]:
    """The names of the settings of a command; empty if it has none."""
    if command in TRAIN_SETTINGS:
        from .train_help import names

        return names()
    from .command_settings import COMMANDS

    return COMMANDS[command].model_fields if command in COMMANDS else ()


def _required(command: Any, ctx: Any) -> list[str]:
    """The arguments that a command needs, by name."""
    params = command.get_params(ctx)
    return [param.metavar for param in params if param.param_type_name == "argument" and param.required]


def _typed_value(option: str, words: Sequence[str]) -> str:
    """The value typed with an option, as in --steps 10 and --steps=10."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word.startswith(f"{option}="):
            return shlex.quote(word.partition("=")[2])
        if word == option and following and not following.startswith("-"):
            return shlex.quote(following)
    return "VALUE"
