"""Spinning threads on a busy machine: what is said depends on numbers alone."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from sagann.runtime import spinning
from sagann.runtime.spinning import CoreTime, core_time, load_advice, may_spin, waiting_advice

START = CoreTime(ran_s=10.0, waited_s=3.0)


@pytest.mark.parametrize(
    ("ran_s", "waited_s", "step_s", "share"),
    [
        (5.0, 0.0, 0.01, None),
        (5.0, 0.5, 0.01, None),
        (4.0, 1.0, 0.01, "20%"),
        (4.0, 1.0, 0.9, "20%"),
        # Operators of long steps are long.
        (4.0, 1.0, 1.0, None),
        # A thread that sleeps neither runs nor waits.
        (0.0, 0.0, 0.01, None),
    ],
)
def test_a_run_that_waits_for_cores_is_told(
    ran_s: float, waited_s: float, step_s: float, share: str | None
) -> None:
    after = CoreTime(ran_s=START.ran_s + ran_s, waited_s=START.waited_s + waited_s)
    text = waiting_advice(START, after, step_s=step_s)
    if share is None:
        assert text is None
    else:
        assert text is not None
        assert f"waits {share} of its time for a core. Set OMP_WAIT_POLICY=passive before Python starts" in text


@pytest.mark.parametrize(
    ("load", "num_threads", "speaks"), [(0.0, 2, False), (0.5, 2, False), (1.0, 2, True), (30.0, 2, True)]
)
def test_load_beside_which_threads_would_wait(load: float, num_threads: int, speaks: bool) -> None:
    text = load_advice(load, num_cores=2, num_threads=num_threads)
    assert (text is not None) == speaks
    if text is not None:
        assert text.startswith(f"Load {load:.1f} on 2 cores, beside which 2 threads would wait for cores. Set OMP")


def test_few_threads_on_many_cores_have_room() -> None:
    assert load_advice(30.0, num_cores=64, num_threads=2) is None


def test_whoever_has_decided_is_not_told() -> None:
    assert may_spin(2, {})
    assert not may_spin(1, {})
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        assert not may_spin(2, {name: "1"})


def test_the_system_counts_the_seconds_of_a_thread() -> None:
    before = core_time()
    if before is None:
        assert not (sys.platform == "linux" and Path("/proc/thread-self/schedstat").exists())
        pytest.skip("the system does not tell the times of a thread")
    spun_s = time.thread_time()
    while time.thread_time() - spun_s < 0.02:
        pass
    after = core_time()
    assert after is not None
    assert after.ran_s - before.ran_s >= 0.01
    assert after.waited_s >= before.waited_s


@pytest.mark.parametrize("content", [None, "", "1 x 3"])
def test_a_system_that_does_not_tell(content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "schedstat"
    if content is not None:
        file.write_text(content)
    monkeypatch.setattr(spinning, "_SCHEDSTAT", file)
    assert core_time() is None
