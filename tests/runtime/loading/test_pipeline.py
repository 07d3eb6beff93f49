"""Stages that work ahead: results in order, bounded memory, errors in their place, and no thread that outlives its pipeline."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from sagann.runtime.loading.pipeline import Pipeline, Size, Stage, StalledError
from tests.threads import living_threads


def threads() -> list[str]:
    return [thread.name for thread in living_threads()]


def wait_until(holds: Callable[[], bool], most_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + most_s
    while not holds():
        assert time.monotonic() < deadline_s, "it did not come true in time"
        time.sleep(0.001)


def late(number: int) -> int:
    """Later items are done sooner."""
    time.sleep(0.002 * (3 - number % 4))
    return 10 * number


@pytest.mark.parametrize(("ahead", "num_threads"), [(0, 1), (1, 4), (3, 1), (50, 4)])
def test_results_come_in_order_whatever_the_threads(ahead: int, num_threads: int) -> None:
    stages = [
        Stage(name="late", work=late, threads=num_threads),
        Stage(name="add", work=lambda result: result + 1, threads=num_threads),
    ]
    with Pipeline(range(3, 23), stages, ahead=ahead, receive=str) as results:
        assert len(results) == 20
        assert next(results) == "31"
        assert list(results) == [str(10 * number + 1) for number in range(4, 23)]
        assert len(results) == 0
        assert list(results) == []
    wait_until(lambda: not threads())


@pytest.mark.parametrize("ahead", [1, 7])
def test_an_item_that_was_taken_keeps_its_place_until_the_caller_goes_on(ahead: int) -> None:
    begun: list[int] = []
    with Pipeline(range(20), [Stage(name="note", work=begun.append)], ahead=ahead, holds=True) as results:
        for number in range(10):
            next(results)
            wait_until(lambda number=number: len(begun) >= number + ahead)
            # Threads that could begin with one more are awake by now.
            time.sleep(0.01)
            assert len(begun) == number + ahead
            if number % 2:
                results.go_on()
                wait_until(lambda number=number: len(begun) == number + ahead + 1)
        # Who does not go on gets all items nevertheless.
        assert len(list(results)) == 10
    assert begun == list(range(20))


def test_a_stage_may_have_a_smaller_bound_than_those_before_it() -> None:
    begun: dict[str, list[int]] = {"small": [], "large": []}

    def note(name: str) -> Callable[[int], int]:
        def work(number: int) -> int:
            begun[name].append(number)
            return number

        return work

    stages = [
        Stage(name="small", work=note("small"), threads=3),
        Stage(name="large", work=note("large"), threads=3, ahead=2),
    ]
    with Pipeline(range(30), stages, ahead=7) as results:
        for taken in range(5):
            wait_until(lambda taken=taken: (len(begun["small"]), len(begun["large"])) == (taken + 7, taken + 2))
            time.sleep(0.01)
            assert (len(begun["small"]), len(begun["large"])) == (taken + 7, taken + 2)
            assert next(results) == taken
        assert list(results) == list(range(5, 30))


@pytest.mark.parametrize("ahead", [1, 50])
def test_a_stage_with_one_thread_takes_items_in_order(ahead: int) -> None:
    entered: list[int] = []

    def note(result: int) -> int:
        entered.append(result // 10)
        return result

    stages = [
        Stage(name="late", work=late, threads=4),
        Stage(name="note", work=note),
        Stage(name="late again", work=lambda result: late(result // 10), threads=4),
    ]
    with Pipeline(range(3, 33), stages, ahead=ahead) as results:
        assert list(results) == [10 * number for number in range(3, 33)]
    assert entered == list(range(3, 33))


@pytest.mark.parametrize(("ahead", "stage"), [(0, "first"), (1, "second"), (8, "first"), (8, "second")])
def test_an_exception_comes_in_the_place_of_its_item(ahead: int, stage: str) -> None:
    def fail(name: str) -> Callable[[int], int]:
        def work(number: int) -> int:
            if name == stage and number >= 4:
                raise ValueError(f"no such row {number}")
            return number

        return work

    stages = [Stage(name=name, work=fail(name), threads=3) for name in ("first", "second")]
    results = Pipeline(range(100), stages, ahead=ahead, item="epoch 2, batch")
    assert [next(results) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="no such row 4") as caught:
        next(results)
    assert caught.value.__notes__ == [f"Raised by stage '{stage}' of epoch 2, batch 4."]
    assert list(results) == []
    assert not threads()


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_stage_cannot_end_the_loop_as_if_there_were_no_more_items(ahead: int) -> None:
    def work(number: int) -> int:
        raise StopIteration

    with pytest.raises(RuntimeError, match="a stage raised StopIteration") as caught:
        list(Pipeline(range(3), [Stage(name="read", work=work)], ahead=ahead))
    assert caught.value.__notes__ == ["Raised by stage 'read' of item 0."]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_whatever_ends_a_stage_reaches_the_caller(error: type[BaseException]) -> None:
    def work(number: int) -> int:
        raise error

    with pytest.raises(error):
        list(Pipeline(range(3), [Stage(name="read", work=work)], ahead=2))
    assert not threads()


def test_closing_waits_for_the_work_that_is_under_way_and_drops_the_rest() -> None:
    ended: list[int] = []

    def work(number: int) -> int:
        time.sleep(0.05)
        ended.append(number)
        return number

    results = Pipeline(range(1000), [Stage(name="read", work=work, threads=2)], ahead=10)
    assert next(results) == 0
    results.close()
    assert not threads()
    count = len(ended)
    time.sleep(0.1)
    assert len(ended) == count < 10
    assert list(results) == []
    results.close()


@pytest.mark.parametrize("num_taken", [1, 4])
def test_closing_finishes_what_has_begun_where_others_wait_for_it(num_taken: int) -> None:
    begun: list[int] = []
    ended: list[int] = []
    stages = [
        Stage(name="begin", work=lambda number: (late(number), begun.append(number), number)[2]),
        Stage(name="end", work=lambda number: (late(number), ended.append(number))),
    ]
    with Pipeline(range(20), stages, ahead=3, drains=True) as results:
        for _ in range(num_taken):
            next(results)
    assert begun == ended == list(range(num_taken + 3))
    assert not threads()


@pytest.mark.parametrize("num_threads", [1, 3])
def test_nobody_begins_what_comes_after_an_item_that_has_failed(num_threads: int) -> None:
    begun: list[int] = []

    def work(number: int) -> int:
        begun.append(number)
        if number == 2:
            raise OSError("the disk is gone")
        return number

    stages = [
        Stage(name="work", work=work, threads=num_threads),
        Stage(name="end", work=late, threads=num_threads),
    ]
    taken: list[int] = []
    with (
        pytest.raises(OSError, match="the disk is gone"),
        Pipeline(range(20), stages, ahead=9, drains=True) as results,
    ):
        taken += results
    assert taken == [0, 10]
    assert max(begun) < 2 + num_threads, "others may be at work by then"
    assert not threads()


def test_a_loop_that_is_left_early_ends_the_threads() -> None:
    for number in Pipeline(range(10_000), [Stage(name="late", work=late, threads=2)], ahead=4):
        if number == 30:
            break
    wait_until(lambda: not threads())


def test_an_item_that_does_not_become_ready_names_its_stage() -> None:
    release = threading.Event()

    def work(number: int) -> int:
        if number == 2:
            release.wait(120)
        return number

    stages = [Stage(name="sample", work=lambda number: number), Stage(name="load", work=work, threads=2)]
    results = Pipeline(range(9), stages, ahead=4, item="epoch 0, batch", most_wait_s=0.2)
    assert [next(results), next(results)] == [0, 1]
    begun_s = time.monotonic()
    with pytest.raises(StalledError) as caught:
        next(results)
    assert str(caught.value) == (
        "epoch 0, batch 2 is not ready: 0 s waited, 0 s are the limit (in stage 'load'). "
        "See whether the disk or the network that the data lie on answers."
    )
    # Nobody waits for the thread a second time.
    results.close()
    assert time.monotonic() - begun_s < 60
    release.set()
    wait_until(lambda: not threads())


def test_a_thread_that_does_not_end_is_an_error_of_close() -> None:
    release = threading.Event()
    results = Pipeline(range(9), [Stage(name="load", work=lambda _: release.wait(120))], ahead=1, most_wait_s=0.1)
    wait_until(lambda: bool(threads()))
    time.sleep(0.05)
    with pytest.raises(
        StalledError, match=r"a thread does not end: it has worked on item 0 .* \(in stage 'load'\)"
    ):
        results.close()
    results.close()
    release.set()
    wait_until(lambda: not threads())


def test_threads_that_the_system_refuses_leave_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    start, count = threading.Thread.start, 0

    def refuse(self: threading.Thread) -> None:
        nonlocal count
        count += 1
        if count == 3:
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        Pipeline(range(99), [Stage(name="late", work=late, threads=5)], ahead=9)
    assert not threads()


@pytest.mark.parametrize("ahead", [0, 3])
def test_counters_say_what_each_stage_does(ahead: int) -> None:
    def slow(number: int) -> int:
        time.sleep(0.02)
        return number

    stages = [
        Stage(name="sample", work=lambda number: number, size_of=lambda number: Size(rows=1, num_bytes=number)),
        Stage(name="load", work=slow, size_of=lambda number: Size(rows=2, num_bytes=8)),
    ]
    with Pipeline(range(10), stages, ahead=ahead) as results:
        for _ in results:
            pass
        sample, load, caller = results.counters
    assert [(each.name, each.items, each.rows, each.num_bytes) for each in (sample, load, caller)] == [
        ("sample", 10, 10, 45),
        ("load", 10, 20, 80),
        ("caller", 10, 0, 0),
    ]
    assert load.busy_s >= 0.2 > sample.busy_s
    assert caller.busy_s < 0.1
    if ahead:
        # The slowest stage sets the pace: the others wait for it.
        assert caller.waited_s > 0.1
        assert load.waited_s < 0.1 < sample.waited_s


PROGRAM = """
import time
from sagann.runtime.loading.pipeline import Pipeline, Stage
def work(number):
    time.sleep(0.5 * number)
    return number
next(Pipeline(range(9), [Stage(name="load", work=work)], ahead=2))
print("done")
"""


def test_a_process_ends_although_a_pipeline_is_open() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=240, check=True)
    assert (ran.stdout, ran.stderr) == ("done\n", "")


STALLED = """
import threading
from sagann.runtime.loading.pipeline import Pipeline, Stage
next(Pipeline(range(2), [Stage(name="load", work=lambda number: threading.Event().wait())], ahead=2, most_wait_s=0.1))
"""


def test_a_process_ends_although_a_thread_does_not() -> None:
    ran = subprocess.run([sys.executable, "-c", STALLED], capture_output=True, text=True, timeout=240)
    assert ran.returncode == 1
    assert "StalledError: item 0 is not ready" in ran.stderr.splitlines()[-1]
