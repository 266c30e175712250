"""Signs of life: no more than one in a while, and one from a thread while others work in silence."""

import time

from hopflow.data.pulse import Pulse


def test_a_beat_is_passed_on_only_when_it_is_time():
    said = []
    eager, lazy = Pulse(said.append, 0.0), Pulse(said.append, 1000.0)
    for number in range(3):
        eager.beat(lambda number=number: f"beat {number}")
        lazy.beat(lambda: "too early")
    lazy.say("now")
    assert said == ["beat 0", "beat 1", "beat 2", "now"]


def test_silent_work_is_told_about_until_it_ends():
    said = []
    pulse = Pulse(said.append, 0.01)
    with pulse.meanwhile(lambda: "merging"):
        while len(said) < 3:
            time.sleep(0.01)
    count = len(said)
    time.sleep(0.05)
    assert len(said) == count
    assert said[0] == "merging (0 s)"


def test_a_text_in_between_does_not_make_the_next_silence_twice_as_long():
    said = []
    pulse, start = Pulse(lambda text: said.append((time.monotonic(), text)), 0.4), time.monotonic()
    with pulse.meanwhile(lambda: "working"):
        time.sleep(0.02)
        pulse.say("a first word")
        while len(said) < 2:
            time.sleep(0.005)
            assert time.monotonic() - start < 60
    (first, _), (second, _) = said
    assert second - first >= 0.4
