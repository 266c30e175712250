"""Old names of a module that still work for one release."""

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def old_names(module: str, renamed: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__` that returns the new object for an old name, with a DeprecationWarning.

    `renamed` maps each old name to the new one. Write `__getattr__ = old_names(__name__, {"Old": "New"})`.
    """

    def getattribute(name: str) -> Any:
        if name not in renamed:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        text = f"{module}.{name} is now {module}.{renamed[name]}; the old name will be removed in the next release"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return getattr(sys.modules[module], renamed[name])

    return getattribute
