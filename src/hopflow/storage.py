"""Storage: components as plain data, and back.

A component is its own configuration, so plain data is `{"kind": the name of its class, argument: value, …}` with
numbers, words, lists and further components as values: what JSON holds. What `from_plain` may build are subclasses of
the family it is asked for, that somebody has defined and imported; whoever adds a source or a cost needs nothing here.
A file names classes by kind only. Nothing in it is imported, looked up elsewhere or run.
"""

import inspect
import math
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from .hints import did_you_mean

T = TypeVar("T")
Plain = dict[str, Any]

DEPTH = 16
"""How deep components may lie in each other; a flow needs three."""


def to_plain(component: object) -> Plain:
    """A component as plain data; a ValueError names what cannot be stored, such as a function."""
    kind = type(component).__name__
    names = _arguments(type(component))
    return {"kind": kind, **{name: _to_plain(getattr(component, name), f"{kind}.{name}") for name in names}}


def from_plain(family: type[T], data: object) -> T:
    """The component of this family that plain data describes; a ValueError says what is wrong with other data."""
    return _component(family, data, family.__name__, 0)


def kinds(family: type[T]) -> dict[str, type[T]]:
    """Whatever can be built of a family, by name."""
    return {cls.__name__: cls for cls in sorted(_concrete(family), key=lambda cls: cls.__name__)}


def _to_plain(value: object, where: str) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, tuple | list):
        return [_to_plain(item, where) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return to_plain(value)
    raise ValueError(
        f"{where} = {value!r} cannot be stored: only finite numbers, words, tuples and components can. "
        f"In place of a function, give a number or a component of your own."
    )


def _component(family: type[T], data: object, where: str, depth: int) -> T:
    if depth > DEPTH:
        raise ValueError(f"{where}: components lie more than {DEPTH} deep in each other")
    if not isinstance(data, Mapping) or not isinstance(data.get("kind"), str):
        raise ValueError(
            f'{where} must be an object with a "kind", one of {", ".join(kinds(family))}; got {_show(data)}'
        )
    cls = _class(family, data["kind"], where)
    hints = _arguments(cls)
    given = {name: value for name, value in data.items() if name != "kind"}
    for name in given:
        if name not in hints:
            raise ValueError(f"{where}: {cls.__name__} has no {_show(name)}{_nearest(name, hints)}")
    if missing := [name for name in hints if name not in given and name not in getattr(cls, "ADDED", ())]:
        raise ValueError(f"{where}: {cls.__name__} lacks {', '.join(missing)}")
    values = {name: _value(hints[name], value, f"{where}.{name}", depth + 1) for name, value in given.items()}
    try:
        return cls(**values)
    except Exception as error:  # whatever a constructor may do with values of the right type, the data is at fault
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{where}: {cls.__name__} refuses these values: {reason}") from error


def _class(family: type[T], kind: str, where: str) -> type[T]:
    found = [cls for cls in _concrete(family) if cls.__name__ == kind]
    if not found:
        raise ValueError(f"{where}: there is no {family.__name__} of kind {_show(kind)}{_nearest(kind, kinds(family))}")
    if len(found) > 1:
        homes = ", ".join(sorted(cls.__module__ for cls in found))
        raise ValueError(f"{where}: {len(found)} classes are called {kind} ({homes}); give yours another name")
    return found[0]


def _concrete(family: type[T]) -> Iterator[type[T]]:
    """The family itself and its subclasses, without the abstract ones."""
    todo, seen = [family], {family}
    while todo:
        cls = todo.pop()
        if not inspect.isabstract(cls):
            yield cls
        new = [sub for sub in type.__subclasses__(cls) if sub not in seen]
        todo += new
        seen |= set(new)


def _arguments(cls: Any) -> dict[str, Any]:
    """The arguments of a class and their types; each is also an attribute of that name."""
    if is_dataclass(cls):
        hints = get_type_hints(cls)
        return {field.name: hints[field.name] for field in fields(cls) if field.init}
    hints = get_type_hints(cls.__init__)
    return {name: hints.get(name, object) for name in inspect.signature(cls).parameters}


def _value(hint: Any, value: object, where: str, depth: int) -> Any:
    if _is_component(hint):
        return _component(hint, value, where, depth)
    origin, inner = get_origin(hint), get_args(hint)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{where} must be a list; got {_show(value)}")
        if inner[-1] is not Ellipsis:
            if len(value) != len(inner):
                raise ValueError(f"{where} must have {len(inner)} entries; got {len(value)}")
            return tuple(_value(part, item, where, depth) for part, item in zip(inner, value, strict=True))
        if inner[0] in (int, float, str):  # long lists of numbers, at once
            return tuple(_validated(types.GenericAlias(list, inner[:1]), list(value), where))
        return tuple(_value(inner[0], item, where, depth) for item in value)
    if origin in (Union, types.UnionType):
        if isinstance(value, Mapping) and (components := [part for part in inner if _is_component(part)]):
            return _component(components[0], value, where, depth)
        hint = Union[tuple(p for p in inner if not _is_component(p) and get_origin(p) is not Callable)]  # noqa: UP007
    return _validated(hint, value, where)


def _is_component(hint: Any) -> bool:
    return isinstance(hint, type) and (is_dataclass(hint) or inspect.isabstract(hint))


def _validated(hint: Any, value: object, where: str) -> Any:
    """A value of exactly this type: no words for numbers, no NaN."""
    try:
        return _adapter(hint).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        at = "".join(f"[{part}]" for part in first["loc"] if isinstance(part, int))
        raise ValueError(f"{where}{at}: {first['msg']}; got {_show(value)}") from None
    except (PydanticUserError, OverflowError) as error:
        raise ValueError(f"{where}: {_show(value)} cannot be read from a file: {error}") from None


@cache
def _adapter(hint: Any) -> Any:
    return TypeAdapter(hint, config=ConfigDict(strict=True, allow_inf_nan=False))


def _nearest(name: object, names: Iterable[str]) -> str:
    hint = did_you_mean(str(name)[:100], names)
    return f"; {hint}" if hint else f"; there are: {', '.join(names) or 'none'}"


def _show(value: object) -> str:
    text = repr(value) if not isinstance(value, Mapping | list | tuple) else f"{type(value).__name__} of {len(value)}"
    return text if len(text) <= 60 else f"{text[:57]}..."
