"""Write the tables of settings into the pages of the documentation.

    python tools/settings_tables.py

A table stands between the lines `<!-- settings of COMMAND -->` and `<!-- end of settings -->`. It is made from the
declaration of the command's settings; tests/docs/test_settings_tables.py fails if a page is out of date.
"""

import re
import sys
from pathlib import Path

from hopflow.cli.settings_help import settings_table

DOCS = Path(__file__).parents[1] / "docs"
TABLE = re.compile(r"(<!-- settings of ([\w ]+) -->\n).*?(<!-- end of settings -->)", re.DOTALL)


def filled(page: str) -> str:
    """A page with the tables that belong into it."""
    return TABLE.sub(lambda place: f"{place[1]}\n{settings_table(place[2])}\n{place[3]}", page)


def pages() -> list[Path]:
    """The pages that have such a table."""
    return [page for page in sorted(DOCS.rglob("*.md")) if TABLE.search(page.read_text(encoding="utf-8"))]


def main() -> int:
    """Write the tables; with --check, only name the pages that are out of date."""
    old = [page for page in pages() if filled(page.read_text(encoding="utf-8")) != page.read_text(encoding="utf-8")]
    for page in old:
        print(page)
        if "--check" not in sys.argv[1:]:
            page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
    return len(old) if "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
