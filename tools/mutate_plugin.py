"""A pytest plugin for tools/mutate.py: records what each test does, or runs a given list of tests in its order.

MUTATE_RECORD names a file: one line of JSON for each test, with its outcome, its seconds and the functions of the
package that it entered, as places in the list of all names so far; `names` holds the new ones.
MUTATE_TESTS names a file, JSON: the tests to run, or files of which all tests run, and those to skip.
"""

import json
import os
import sys
from pathlib import Path

import pytest

RECORD = os.environ.get("MUTATE_RECORD")
TESTS = os.environ.get("MUTATE_TESTS")
PACKAGE = os.environ.get("MUTATE_PACKAGE", "")
MONITORS = hasattr(sys, "monitoring")  # from Python 3.12 on; before, a profiler is called at every call

entered: set[str] = set()
places: dict[str, int] = {}
known: dict[object, str | None] = {}
totals: dict[str, dict] = {}


def name_of(code) -> str | None:
    """FILE:FUNCTION of a function of the package."""
    if not code.co_filename.startswith(PACKAGE):
        return None
    path = code.co_filename[len(PACKAGE) :].lstrip("/")
    return f"{path}:{code.co_qualname.replace('.<locals>', '').split('.<')[0]}"


def on_start(code, _):
    if name := name_of(code):
        entered.add(name)
    return sys.monitoring.DISABLE


def on_event(frame, event, _):
    if event == "call":
        code = frame.f_code
        if code not in known:
            known[code] = name_of(code)
        if known[code]:
            entered.add(known[code])


def watch() -> None:
    """Note the functions that are entered from now on, each once."""
    if not MONITORS:
        sys.setprofile(on_event)
        return
    monitoring = sys.monitoring
    if monitoring.get_tool(monitoring.COVERAGE_ID) is None:
        monitoring.use_tool_id(monitoring.COVERAGE_ID, "mutate")
        monitoring.register_callback(monitoring.COVERAGE_ID, monitoring.events.PY_START, on_start)
        monitoring.set_events(monitoring.COVERAGE_ID, monitoring.events.PY_START)
    monitoring.restart_events()


def pytest_unconfigure():
    """Python clears this module's names at its end, and still enters functions."""
    if RECORD and MONITORS:
        sys.monitoring.set_events(sys.monitoring.COVERAGE_ID, 0)
    sys.setprofile(None)


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
        entered.clear()
        watch()
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
