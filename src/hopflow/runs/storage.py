"""Components as JSON data, and back.

A component is stored as `{"kind": the name of its class, argument: value, …}`. Values are numbers, text, lists and
further components. `from_plain` builds subclasses of the family it is asked for; the class must be imported already,
and a new source or cost needs no registration. A file names classes by kind only. Nothing in a file is imported or run.

An argument that a file lacks takes its default, or the value in its `older_defaults`: an older file can be read
after a class has grown an argument.
"""

import inspect
import math
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from ..system.hints import did_you_mean

T = TypeVar("T")
Plain = dict[str, Any]

DEPTH = 16
"""How deep components may be nested; a flow needs three."""


def to_plain(component: object) -> Plain:
    """A component as JSON data; a ValueError names a value that cannot be stored, such as a function."""
    kind = type(component).__name__
    names = arguments(type(component))
    return {"kind": kind, **{name: value_to_plain(getattr(component, name), f"{kind}.{name}") for name in names}}


def from_plain(family: type[T], data: object) -> T:
    """The component of this family that JSON data describes; a ValueError says what is wrong with the data."""
    return _component(family, data, family.__name__, 0)


def kinds(family: type[T]) -> dict[str, type[T]]:
    """The concrete classes of a family, by name."""
    return {cls.__name__: cls for cls in sorted(_concrete(family), key=lambda cls: cls.__name__)}


def arguments(cls: Any) -> dict[str, Any]:
    """The constructor arguments of a class and their types; each is also an attribute of that name."""
    if is_dataclass(cls):
        hints = get_type_hints(cls)
        return {field.name: hints[field.name] for field in fields(cls) if field.init}
    hints = get_type_hints(cls.__init__)
    return {name: hints.get(name, object) for name in inspect.signature(cls).parameters}


def defaults(cls: Any) -> dict[str, Any]:
    """The default values of those constructor arguments that have one."""
    if is_dataclass(cls):
        known = {f.name: f.default if f.default_factory is MISSING else f.default_factory() for f in fields(cls)}
        return {name: known[name] for name in arguments(cls) if known[name] is not MISSING}
    parameters = inspect.signature(cls).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}


def value_to_plain(value: object, where: str) -> Any:
    """A number, text, list or component as JSON data; `where` names it in the error."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, tuple | list):
        return [value_to_plain(item, where) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return to_plain(value)
    raise ValueError(
        f"{where} = {value!r} cannot be stored: only finite numbers, text, tuples and components can. "
        f"Use a number or a component of your own instead of a function."
    )


def value_from_plain(hint: Any, value: object, where: str, depth: int = 0) -> Any:
    """A value of the annotated type `hint` from JSON data; `where` names it in the error."""
    if is_component(hint):
        return _component(hint, value, where, depth)
    origin, inner = get_origin(hint), get_args(hint)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{where} must be a list, got {_show(value)}")
        if inner[-1] is not Ellipsis:
            if len(value) != len(inner):
                raise ValueError(f"{where} must have {len(inner)} entries, got {len(value)}")
            return tuple(value_from_plain(part, item, where, depth) for part, item in zip(inner, value, strict=True))
        if inner[0] in (int, float, str):  # a long list of numbers is validated in one call
            return tuple(_validated(types.GenericAlias(list, inner[:1]), list(value), where))
        return tuple(value_from_plain(inner[0], item, where, depth) for item in value)
    if origin in (Union, types.UnionType):
        if isinstance(value, Mapping) and (components := [part for part in inner if is_component(part)]):
            return _component(components[0], value, where, depth)
        hint = Union[tuple(p for p in inner if not is_component(p) and get_origin(p) is not Callable)]  # noqa: UP007
    return _validated(hint, value, where)


def is_component(hint: Any) -> bool:
    """Whether a type annotation names a component: a dataclass, or the abstract class of a family."""
    return isinstance(hint, type) and (is_dataclass(hint) or inspect.isabstract(hint))


def _component(family: type[T], data: object, where: str, depth: int) -> T:
    if depth > DEPTH:
        raise ValueError(f"{where}: components are nested more than {DEPTH} levels deep")
    if not isinstance(data, Mapping) or not isinstance(data.get("kind"), str):
        raise ValueError(
            f'{where} must be an object with a "kind", one of {", ".join(kinds(family))}, got {_show(data)}'
        )
    cls = _class(family, data["kind"], where)
    hints = arguments(cls)
    given = {name: value for name, value in data.items() if name != "kind"}
    for name in given:
        if name not in hints:
            raise ValueError(f"{where}: {cls.__name__} has no {_show(name)}{_nearest(name, hints)}")
    if missing := [name for name in hints if name not in given and name not in defaults(cls)]:
        raise ValueError(f"{where}: {cls.__name__} needs {', '.join(missing)}, which the data does not contain")
    values = {name: value_from_plain(hints[name], value, f"{where}.{name}", depth + 1) for name, value in given.items()}
    values = {**getattr(cls, "older_defaults", {}), **values}
    try:
        return cls(**values)
    except Exception as error:  # the values have the right types, so any error is one of the data
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{where}: {cls.__name__} rejects these values: {reason}") from error


def _class(family: type[T], kind: str, where: str) -> type[T]:
    found = [cls for cls in _concrete(family) if cls.__name__ == kind]
    if not found:
        raise ValueError(f"{where}: there is no {family.__name__} of kind {_show(kind)}{_nearest(kind, kinds(family))}")
    if len(found) > 1:
        homes = ", ".join(sorted(cls.__module__ for cls in found))
        raise ValueError(f"{where}: {len(found)} classes are called {kind} ({homes}); rename yours")
    return found[0]


def _concrete(family: type[T]) -> Iterator[type[T]]:
    """The family itself and all its subclasses, except abstract ones."""
    todo, seen = [family], {family}
    while todo:
        cls = todo.pop()
        if not inspect.isabstract(cls):
            yield cls
        new = [sub for sub in type.__subclasses__(cls) if sub not in seen]
        todo += new
        seen |= set(new)


def _validated(hint: Any, value: object, where: str) -> Any:
    """The value, if it has exactly this type: no text for numbers, no NaN."""
    try:
        return _adapter(hint).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        at = "".join(f"[{part}]" for part in first["loc"] if isinstance(part, int))
        raise ValueError(f"{where}{at}: {first['msg']}, got {_show(value)}") from None
    except (PydanticUserError, OverflowError) as error:
        raise ValueError(f"{where}: {_show(value)} cannot be read from a file: {error}") from None


@cache
def _adapter(hint: Any) -> Any:
    return TypeAdapter(hint, config=ConfigDict(strict=True, allow_inf_nan=False))


def _nearest(name: object, names: Iterable[str]) -> str:
    hint = did_you_mean(str(name)[:100], names)
    return f"; {hint}" if hint else f"; known: {', '.join(names) or 'none'}"


def _show(value: object) -> str:
    text = repr(value) if not isinstance(value, Mapping | list | tuple) else f"{type(value).__name__} of {len(value)}"
    return text if len(text) <= 60 else f"{text[:57]}..."
