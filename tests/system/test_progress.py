"""Progress messages: at most one per interval, and from a thread during calls that report nothing."""

import time

from hopflow.system.progress import Progress


def test_an_update_is_reported_only_after_the_interval():
    messages = []
    eager, lazy = Progress(messages.append, 0.0), Progress(messages.append, 1000.0)
    for number in range(3):
        eager.update(lambda number=number: f"update {number}")
        lazy.update(lambda: "too early")
    lazy.write("now")
    assert messages == ["update 0", "update 1", "update 2", "now"]


def test_keep_updating_reports_until_the_block_ends():
    messages = []
    progress = Progress(messages.append, 0.01)
    with progress.keep_updating(lambda: "merging"):
        while len(messages) < 3:
            time.sleep(0.01)
    count = len(messages)
    time.sleep(0.05)
    assert len(messages) == count
    assert messages[0] == "merging (0 s)"


def test_a_written_message_restarts_the_interval():
    messages = []
    progress, start = Progress(lambda text: messages.append((time.monotonic(), text)), 0.4), time.monotonic()
    with progress.keep_updating(lambda: "working"):
        time.sleep(0.02)
        progress.write("a first message")
        while len(messages) < 2:
            time.sleep(0.005)
            assert time.monotonic() - start < 60
    (first, _), (second, _) = messages
    assert second - first >= 0.4


def test_an_update_is_reported_when_the_interval_has_just_passed(monkeypatch):
    now, messages = [100.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    progress = Progress(messages.append, 2.0)
    for now[0] in (101.75, 102.0, 103.75, 104.0):
        progress.update(lambda: f"at {now[0]:g}")
    assert messages == ["at 102", "at 104"]
