"""The commit of a Hugging Face repository that a name refers to.

The first use of `NAME` records the current commit in the cache; later uses get the same files, online or offline.
`NAME@REVISION` selects a branch, a tag or a commit, whose current commit is recorded in place of the old one.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..system import atomic
from ..system.progress import Progress
from .file_hashes import file_sha256

COMMIT = re.compile(r"[0-9a-f]{40}")


class PinnedRevision:
    """The recorded commit of a repository; `kind` is "model" or "dataset"."""

    def __init__(self, kind: str, name: str, cache: Path) -> None:
        self.name, self.asked = split(name)
        self._cache = cache
        key = hashlib.sha256(f"{kind} {self.name}".encode()).hexdigest()[:24]
        self._file = cache / "revisions" / f"{key}.json"

    @property
    def wanted(self) -> str | None:
        """The revision to download: the one in the name, else the recorded one, else None."""
        revision = self._recorded().get("revision")
        known = revision if isinstance(revision, str) and COMMIT.fullmatch(revision) else None
        return self.asked or known

    def record(self, revision: str, files: Iterable[Path], progress: Progress) -> None:
        """Record the commit and its files; an OSError if they differ from those recorded for the same commit."""
        found = {file.name: file_sha256(file, self._cache, progress) for file in files}
        recorded = self._recorded()
        before = recorded.get("sha256") if recorded.get("revision") == revision else None
        if isinstance(before, dict):
            for name, sha256 in found.items():
                if before.get(name, sha256) != sha256:
                    raise OSError(
                        f"{name} of {self.name} is not the file that was first used at revision {revision[:12]}: "
                        f"its sha256 is {sha256[:12]}…, {str(before[name])[:12]}… was recorded\n"
                        f"delete it in the hub's cache: it will be downloaded again"
                    )
            found = {**before, **found}
        content = {"name": self.name, "revision": revision, "sha256": found}
        if content != recorded:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            atomic.write(self._file, json.dumps(content, indent=1).encode())

    def _recorded(self) -> dict[str, Any]:
        try:
            content = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}


def split(name: str) -> tuple[str, str | None]:
    """`NAME@REVISION` as name and revision."""
    repository, _, revision = name.partition("@")
    return repository, revision or None
