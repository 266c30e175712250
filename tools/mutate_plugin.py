"""A pytest plugin for tools/mutate.py: records what each test does, or runs a given list of tests in its order.

MUTATE_RECORD names a file: one line of JSON for each test, with its outcome, its seconds and the blocks of the package
that it reached (tools/mutate_blocks.py), as places in the list of all names so far; `names` holds the new ones.
MUTATE_TESTS names a file, JSON: the tests to run, or files of which all tests run, and those to skip.
"""

import json
import os
import sys
from pathlib import Path

import pytest

RECORD = os.environ.get("MUTATE_RECORD")
REACHED = os.environ.get("MUTATE_REACHED")
TESTS = os.environ.get("MUTATE_TESTS")

places: dict[str, int] = {}
totals: dict[str, dict] = {}


def forget() -> None:
    """Note every block again from now on."""
    if REACHED:
        Path(REACHED).write_text("")
    if module := sys.modules.get("hopflow.reached_blocks"):
        module.seen.clear()


def reached() -> set[str]:
    return set(Path(REACHED).read_text().split()) if REACHED else set()


def pytest_collection_modifyitems(session, config, items):
    if not TESTS:
        return
    wanted = json.loads(Path(TESTS).read_text())
    place = {test: i for i, test in enumerate(wanted["run"])}
    places = {item: place.get(item.nodeid, place.get(item.nodeid.split("::")[0])) for item in items}
    chosen = [item for item in items if places[item] is not None and item.nodeid not in wanted["skip"]]
    items[:] = sorted(chosen, key=places.get)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    if RECORD:
        forget()
    yield
    if RECORD and item.nodeid in totals:
        found = reached()
        names = sorted(found - set(places))
        places.update({name: len(places) + i for i, name in enumerate(names)})
        ids = sorted(places[name] for name in found)
        line = {"test": item.nodeid, **totals.pop(item.nodeid), "names": names, "reached": ids}
        with Path(RECORD).open("a") as file:
            file.write(json.dumps(line) + "\n")


def pytest_runtest_logreport(report):
    total = totals.setdefault(report.nodeid, {"outcome": "passed", "seconds": 0.0})
    total["seconds"] = round(total["seconds"] + report.duration, 4)
    if report.outcome != "passed":
        total["outcome"] = report.outcome
