"""Networks that are named instead of their folder: those of hopflow's repository, in a clone, and those of the hub."""

from pathlib import Path

from . import hub
from .config_file import CONFIG

NAMES = ("novels",)
FOLDER = "pretrained"
_CLONE = Path(__file__).parents[3]
"""The folder that contains src/, if the package is used from a clone."""


def network_place(text: str) -> str | Path:
    """What `from_pretrained` takes for the network that a user has named: `hub:user/name`, or a folder."""
    return text if hub.prefixed(text) is not None else network_folder(text)


def network_folder(text: str) -> Path:
    """The folder that a user has named: a path, or the name of a network of the repository.

    A network is searched in `pretrained/NAME` of the working directory and of the clone that the package is in.
    """
    path = Path(text)
    if text not in NAMES or path.exists():
        return path
    for home in (Path.cwd(), _CLONE):
        found = home / FOLDER / text
        if (found / CONFIG).is_file():
            return found
    if (_CLONE / "pyproject.toml").is_file():
        raise ValueError(
            f"{text} is not in this clone: there is no {FOLDER}/{text}. Update the clone, or train it: "
            f"`hopflow reproduce network`"
        )
    raise ValueError(
        f"{text} is a network of hopflow's repository, which the installed package leaves out for its size: clone the "
        f"repository and run this command there, or copy its folder {FOLDER}/{text} and pass the path of the copy"
    )
