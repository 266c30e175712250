"""The table at the end of `make torture` counts what was tried and names what was lost."""

from types import SimpleNamespace

import torture_table


def report(name, when="teardown", outcome="passed", marked=True, **tries):
    return SimpleNamespace(
        nodeid=f"tests/test_it.py::test_{name}",
        keywords={"torture": 1} if marked else {},
        when=when,
        duration=1.0,
        failed=outcome == "failed",
        skipped=outcome == "skipped",
        user_properties=list(tries.items()),
    )


def test_cases_of_one_torture_test_are_one_row_with_all_its_tries():
    reports = [report(f"many_kills[{n}]", when, kills=3) for n in range(4) for when in ("call", "teardown")]
    lines = torture_table.table(torture_table.rows([*reports, report("fast", marked=False, kills=9)]))
    assert lines[2:] == ["| many kills | 12 kills | 0 | 8 |", "| all | 4 cases | 0 | 8 |"]


def test_a_failed_case_is_counted_as_lost_and_a_skipped_test_says_so():
    reports = [
        report("kills[0]"),
        report("kills[1]", "call", "failed"),
        report("kills[1]"),
        report("gpu", "setup", "skipped"),
    ]
    lines = torture_table.table(torture_table.rows(reports))
    assert lines[2] == "| kills | 2 cases | 1 of 2 cases failed | 3 |"
    assert lines[3] == "| gpu | skipped | – | – |"
    assert lines[4].startswith("| all | 3 cases | 1 |")
