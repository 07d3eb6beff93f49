"""A step is cut into pieces by its exchanges; waiting does not count. The clock is a list of times."""

from __future__ import annotations

import pytest

from sagann.runtime.workers import stopwatch
from sagann.runtime.workers.stopwatch import Lap, Stopwatch


class Clock:
    """A clock that the test moves on."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def perf_counter(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(stopwatch, "time", found)
    return found


def test_what_a_device_has_still_to_compute_is_computing(clock: Clock) -> None:
    queued_s = 0.0

    def finish() -> None:
        nonlocal queued_s
        clock.now_s += queued_s
        queued_s = 0.0

    watch = Stopwatch(finish)
    with watch.waiting():
        # Outside of a step nobody waits for the device.
        queued_s = 100.0
    assert queued_s == 100.0
    queued_s = 0.0
    watch.start()
    queued_s = 3.0
    with watch.waiting():
        clock.now_s += 50.0
    queued_s = 5.0
    watch.exchange(row_bytes=8)
    queued_s = 7.0
    watch.turn()
    watch.stop()
    assert {kind: lap.seconds for kind, lap in watch.take().items()} == {
        "forward 0": 8.0,
        "forward 1": 7.0,
        "backward 0": 0.0,
    }


def test_pieces_of_a_step_have_their_seconds_without_waits(clock: Clock) -> None:
    watch = Stopwatch()

    def work(compute_s: float, wait_s: float = 0.0) -> None:
        clock.now_s += compute_s
        with watch.waiting():
            clock.now_s += wait_s

    watch.start()
    work(1.0, 5.0)
    first = watch.exchange(row_bytes=64)
    work(2.0, 7.0)
    second = watch.exchange(row_bytes=256)
    work(4.0)
    watch.turn()
    work(8.0, 3.0)
    watch.give_back(second)
    work(16.0)
    # Another tensor of the same exchange.
    watch.give_back(second)
    work(32.0, 9.0)
    watch.give_back(first)
    work(64.0)
    watch.stop()
    work(1000.0)
    assert watch.take() == {
        "forward 0": Lap(row_bytes=0, seconds=1.0),
        "forward 1": Lap(row_bytes=64, seconds=2.0),
        "forward 2": Lap(row_bytes=256, seconds=4.0),
        "backward 2": Lap(row_bytes=256, seconds=8.0 + 16.0),
        "backward 1": Lap(row_bytes=64, seconds=32.0),
        "backward 0": Lap(row_bytes=0, seconds=64.0),
    }
    assert watch.take() == {}
