"""The --help of commands: usage, description, arguments, options and settings, as plain text.

Typer's own pages differ between its versions and show Python types such as list[str].
"""

import inspect
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from typer.core import TyperCommand, TyperGroup

from ..evaluation.text_table import wrapped_lines
from .output import page_width
from .settings_help import aligned
from .usage_errors import KEY_VALUE, check_arguments


class Command(TyperCommand):
    """A command without settings, or one whose settings are not listed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The words of the command line, with errors that name this command."""
        try:
            rest = super().parse_args(ctx, args)
        except Exception as error:
            if hasattr(error, "format_message") and getattr(error, "ctx", None) is None:
                error.ctx = ctx  # type: ignore[attr-defined]  # typer does not tell which command an option is missing in
            raise
        if not ctx.resilient_parsing:
            check_arguments(self, ctx)
        return rest

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(_page(self, ctx, [*_usage(self, ctx)]))


class CommandWithSettings(Command):
    """A command whose --help ends with its settings; their declaration is read only when --help is shown."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from .settings_help import example, settings_list

        name = ctx.command_path.partition(" ")[2]
        typed = f"Settings, such as {example(name)}." if example(name) else ""
        formatter.write(_page(self, ctx, [*_usage(self, ctx)], typed))
        formatter.write("\n" + settings_list(name))


class CommandGroup(TyperGroup):
    """A command that consists of further commands."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(_page(self, ctx, ["COMMAND", "..."]))
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        formatter.write(_section("Commands", [(name, _paragraphs(found)[0]) for name, found in commands if found]))


def _page(command: Any, ctx: Any, usage: Sequence[str], settings: str = "") -> str:
    """The page up to the options; `settings` describes the argument KEY=VALUE."""
    shown = [param for param in command.get_params(ctx) if not getattr(param, "hidden", False)]
    arguments = [
        (_name(param), settings if param.metavar == KEY_VALUE and settings else param.help)
        for param in shown
        if param.param_type_name == "argument"
    ]
    options = [(_flags(param), _with_default(param)) for param in shown if param.param_type_name == "option"]
    usage_line = " ".join(("Usage:", ctx.command_path, "[OPTIONS]", *usage))
    parts = ["\n".join(wrapped_lines(text, page_width())) for text in (usage_line, *_paragraphs(command))]
    return "\n\n".join(parts) + "\n" + _section("Arguments", arguments) + _section("Options", options)


def _section(title: str, rows: Sequence[tuple[str, str]]) -> str:
    return f"\n{title}:\n{aligned(rows)}" if rows else ""


def _paragraphs(command: Any) -> list[str]:
    """The description; a line break of the source code is not shown."""
    return [" ".join(part.split()) for part in inspect.cleandoc(command.help or "").split("\n\n")]


def _usage(command: Any, ctx: Any) -> Iterable[str]:
    """RUN is required, [KEY=VALUE]... is not; a metavar with ... is shown as it is."""
    for param in command.get_params(ctx):
        if param.param_type_name == "argument":
            name = param.metavar or param.name.upper()
            optional = not param.required and "..." not in name
            yield (f"[{name}]" if optional else name) + "..." * (param.nargs != 1 and "..." not in name)


def _name(param: Any) -> str:
    return (param.metavar or param.name.upper()).partition("...")[0]


def _flags(param: Any) -> str:
    names = ", ".join(sorted(param.opts, key=len))
    return names if param.is_flag else f"{names} {param.metavar or param.name.upper()}"


def _with_default(param: Any) -> str:
    known = not param.is_flag and param.show_default and isinstance(param.default, str | int | float | Path)
    return f"{param.help.rstrip('.')} (default: {param.default})." if known else param.help
