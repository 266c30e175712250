"""Settings written key=value: split, checked against a command's declaration, and read."""

import shlex
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, TypeVar

from ..system.hints import did_you_mean
from .train_help import names

if TYPE_CHECKING:
    from pydantic import BaseModel

    from .setting_types import CommandSettings

    Declared = TypeVar("Declared", bound=CommandSettings)


def parse_settings(words: Sequence[str] | None, declaration: "type[Declared]") -> "Declared":
    """The settings of a command from its words key=value; an error names the setting and what it may be."""
    from pydantic import ValidationError

    from .setting_types import is_repeated

    fields = declaration.model_fields
    repeated = [key for key, field in fields.items() if is_repeated(field)]
    keys = split_settings(words or (), known=fields, repeated=repeated)
    for key, texts in keys.items():
        if "" in texts:
            raise ValueError(_refusal(declaration, key, ""))
    try:
        typed = {key: tuple(texts) if key in repeated else texts[0] for key, texts in keys.items()}
        return declaration.model_validate(typed)
    except ValidationError as error:
        key = str(error.errors()[0]["loc"][0])
        raise ValueError(_refusal(declaration, key, keys[key][0])) from None


def split_settings(
    words: Sequence[str], known: Collection[str] | None = None, repeated: Collection[str] = ()
) -> dict[str, list[str]]:
    """The texts of each key; a key may be typed twice only if it is `repeated`, with different texts."""
    keys: dict[str, list[str]] = {}
    for place, word in enumerate(words):
        key, equals, text = word.partition("=")
        listed = "`hopflow config keys` lists them" if known is None else f"known settings: {', '.join(known)}"
        if not (key and equals):
            typed = _joined(words, place, names() if known is None else known)
            raise ValueError(f"settings are written key=value, got {word!r}\n{f'type {typed}' if typed else listed}")
        if known is not None and key not in known:
            raise ValueError(f"unknown setting {key!r}\n{did_you_mean(key.lower(), known) or listed}")
        if key in keys and (key not in repeated or text in keys[key]):
            raise ValueError(f"setting {(word if key in repeated else key)!r} is typed twice")
        keys.setdefault(key, []).append(text)
    return keys


def _joined(words: Sequence[str], place: int, known: Collection[str]) -> str:
    """The setting of a word without key=value if it was typed with blanks: `steps 10`, `steps = 10`, `steps= 10`."""
    word = words[place]
    if place and words[place - 1].partition("=")[1:] == ("=", ""):
        return words[place - 1] + shlex.quote(word)
    if word not in known:
        return ""
    after = [part.removeprefix("=") for part in words[place + 1 : place + 3] if part != "="]
    return f"{word}=" + (shlex.quote(after[0]) if after and "=" not in after[0] else "VALUE")


def unread_settings(words: Sequence[str] | None) -> dict[str, str]:
    """Keys and texts as typed, for recipes, which check them."""
    return {key: texts[0] for key, texts in split_settings(words or ()).items()}


def _refusal(declaration: "type[BaseModel]", key: str, text: str) -> str:
    """length must be an integer ≥ 1, got 0."""
    from .setting_types import allowed, choices

    field = declaration.model_fields[key]
    hint = did_you_mean(text.lower(), choices(field))
    got = text if text and text.isprintable() and " " not in text else repr(text)
    return f"{key} must be {allowed(field)}, got {got}{f'; {hint}' if hint else '.'}"
