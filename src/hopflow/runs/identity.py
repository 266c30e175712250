"""The identity of a run: everything that decides what is learned, as flat keys with short values.

A run may be resumed only with the same identity. A key that an older run lacks has its default there: settings and
components can grow without making older runs impossible to resume.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from .storage import arguments, defaults, value_to_plain

LONGEST_LIST = 16
"""Entries; a longer list is replaced by its hash."""
WEIGHTS = "model.weights"
"""The key with the hash of the names and shapes of a network's weights."""
HEADS = ("labels", "predict_x0")
"""Settings of a recipe that are not part of the identity, but decide which weights a network has."""


def flatten(prefix: str, value: Any) -> dict[str, Any]:
    """Nested JSON data as flat keys: {"source": {"kind": "Mask"}} becomes {"source.kind": "Mask"}."""
    if isinstance(value, Mapping):
        parts = [flatten(f"{prefix}.{name}", part) for name, part in value.items()]
        return {key: leaf for part in parts for key, leaf in part.items()}
    if isinstance(value, list | tuple) and len(value) > LONGEST_LIST:
        value = hashlib.sha256(json.dumps(value).encode()).hexdigest()
    return {prefix.removeprefix("."): value}


def recipe_hash(identity: Mapping[str, Any]) -> str:
    """16 hex digits that name what is learned, on any machine."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True, allow_nan=False).encode()).hexdigest()[:16]


def with_defaults(
    saved: Mapping[str, Any], settings: Mapping[str, Any], components: Mapping[str, object]
) -> dict[str, Any]:
    """A saved identity, completed by the defaults of the keys it lacks.

    `settings` maps each learned setting to its default; `components` maps a prefix, such as "flow", to the component
    whose arguments are stored under it. A component inside a list is not completed.
    """
    found = {**settings, **saved}
    for prefix, component in components.items():
        found |= _argument_defaults(prefix, component, saved)
    return found


def _argument_defaults(prefix: str, component: object, saved: Mapping[str, Any]) -> dict[str, Any]:
    if f"{prefix}.kind" not in saved or saved[f"{prefix}.kind"] != type(component).__name__:
        return {}  # another class: nothing to complete
    missing: dict[str, Any] = {}
    for name, default in defaults(type(component)).items():
        at = f"{prefix}.{name}"
        if not any(key == at or key.startswith(f"{at}.") for key in saved):
            missing |= flatten(at, value_to_plain(default, at))
    for name in arguments(type(component)):
        if is_dataclass(value := getattr(component, name)):
            missing |= _argument_defaults(f"{prefix}.{name}", value, saved)
    return missing


def differences(
    saved: Mapping[str, Any],
    asked: Mapping[str, Any],
    may_change: set[str],
    network: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {}),
) -> list[str]:
    """One line for each key that differs; keys that users type, if there are any, hide those that follow from them.

    `network` are the `network_settings` of both, which are named if the weights have other shapes.
    """
    keys = [key for key in {**saved, **asked} if saved.get(key) != asked.get(key) and key not in may_change]
    if WEIGHTS in keys:
        saved, asked = {**saved, **network[0]}, {**asked, **network[1]}
        keys += network[0].keys()
    keys = [key for key in keys if "." not in key] or keys  # not flow.source.kind where source differs
    return [
        f"{key}: {_short(saved.get(key))} in the folder, {_short(asked.get(key))} in this command"
        for key in sorted(keys)
    ]


def network_settings(saved: Mapping[str, Any], asked: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Those settings of two recipes that differ and add weights to a network; auto for one that is not set."""
    keys = [key for key in HEADS if saved.get(key) != asked.get(key)]
    first, second = ({key: "auto" if one.get(key) is None else one[key] for key in keys} for one in (saved, asked))
    return first, second


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
