"""A pytest plugin for tools/mutate.py: records what each test does, or runs a given list of tests in its order.

MUTATE_RECORD names a file: one line of JSON for each test, with its outcome, its seconds and the functions of the
package that it entered (Python 3.12 and later), as places in the list of all names so far; `names` holds the new ones.
MUTATE_TESTS names a file: a JSON list of the tests to run.
"""

import json
import os
import sys
from pathlib import Path

import pytest

RECORD = os.environ.get("MUTATE_RECORD")
TESTS = os.environ.get("MUTATE_TESTS")
PACKAGE = os.environ.get("MUTATE_PACKAGE", "")

entered: set[str] = set()
places: dict[str, int] = {}
totals: dict[str, dict] = {}


def on_start(code, _, package=PACKAGE):
    if code.co_filename.startswith(package):
        path = code.co_filename[len(package) :].lstrip("/")
        entered.add(f"{path}:{code.co_qualname.replace('.<locals>', '').split('.<')[0]}")
    return sys.monitoring.DISABLE


def watch() -> None:
    monitoring = sys.monitoring
    monitoring.use_tool_id(monitoring.COVERAGE_ID, "mutate")
    monitoring.register_callback(monitoring.COVERAGE_ID, monitoring.events.PY_START, on_start)
    monitoring.set_events(monitoring.COVERAGE_ID, monitoring.events.PY_START)


def pytest_unconfigure():
    if RECORD and hasattr(
        sys, "monitoring"
    ):  # Python clears this module's names at its end, and still enters functions
        sys.monitoring.set_events(sys.monitoring.COVERAGE_ID, 0)


if RECORD and hasattr(sys, "monitoring"):
    watch()


def pytest_collection_modifyitems(session, config, items):
    if not TESTS:
        return
    place = {test: i for i, test in enumerate(json.loads(Path(TESTS).read_text()))}
    items[:] = sorted((item for item in items if item.nodeid in place), key=lambda item: place[item.nodeid])


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    if RECORD and hasattr(sys, "monitoring"):
        entered.clear()
        sys.monitoring.restart_events()
    yield
    if RECORD and item.nodeid in totals:
        names = sorted(entered - set(places))
        places.update({name: len(places) + i for i, name in enumerate(names)})
        ids = sorted(places[name] for name in entered)
        line = {"test": item.nodeid, **totals.pop(item.nodeid), "names": names, "entered": ids}
        with Path(RECORD).open("a") as file:
            file.write(json.dumps(line) + "\n")


def pytest_runtest_logreport(report):
    total = totals.setdefault(report.nodeid, {"outcome": "passed", "seconds": 0.0})
    total["seconds"] = round(total["seconds"] + report.duration, 4)
    if report.outcome != "passed":
        total["outcome"] = report.outcome
