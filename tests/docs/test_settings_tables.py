"""The tables of settings in the documentation are those of the commands."""

import runpy
import subprocess
import sys

from pages import ROOT

TOOL = runpy.run_path(str(ROOT / "tools" / "settings_tables.py"))


def test_the_tables_of_settings_are_up_to_date():
    """In its own process: other tests define components, which would be listed."""
    tool = [sys.executable, str(ROOT / "tools" / "settings_tables.py"), "--check"]
    checked = subprocess.run(tool, capture_output=True, text=True)
    assert (checked.returncode, checked.stdout) == (0, ""), f"run python tools/settings_tables.py {checked.stderr}"


def test_the_page_of_commands_has_the_settings_of_sample_infill_and_eval():
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert {match[1] for match in TOOL["TABLE"].findall(text)} >= {"sample", "infill", "eval"}


def test_a_table_that_is_out_of_date_is_found():
    page = "<!-- settings of sample -->\nold\n<!-- end of settings -->\n"
    assert "| `steps` |" in TOOL["filled"](page)
    assert "old" not in TOOL["filled"](page)
