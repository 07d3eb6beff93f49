"""Spinning threads on a busy machine: found by how long this thread waits for a core, or by the machine's load.

Threads of OpenMP wait for each other in a loop, which is the fastest way on a quiet machine. Where other programs want the cores, a
thread that spins keeps a core from the very thread that it waits for, and an operator of microseconds takes as long as the system's
time slices. ``OMP_WAIT_POLICY=passive`` lets waiting threads sleep; it is read when Python starts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_SCHEDSTAT = Path("/proc/thread-self/schedstat")
_LEAST_SHARE = 0.1
"Share of its time that a thread waits for a core, from which on the machine counts as busy."
_LONG_STEP_S = 1.0
"Seconds of a step from which on its operators are so long that spinning costs little."
_SPARE_CORES = 0.5
"Load beyond the cores that is no reason to speak: the load is a mean over a minute."
_SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"Variables that say how threads wait. Whoever has set one has decided."
_REMEDY = "Set OMP_WAIT_POLICY=passive before Python starts: waiting threads then sleep, and short epochs are several times faster on a busy machine."


@dataclass(frozen=True, kw_only=True, slots=True)
class CoreTime:
    """What the system's scheduler gave to a thread so far."""

    ran_s: float
    "Seconds on a core."
    waited_s: float
    "Seconds in which the thread could have run, and waited for a core."


def core_time() -> CoreTime | None:
    """The time of the thread that calls; None where the system does not tell it, as any but Linux."""
    try:
        ran, waited = _SCHEDSTAT.read_text().split()[:2]
        return CoreTime(ran_s=int(ran) / 1e9, waited_s=int(waited) / 1e9)
    except (OSError, ValueError):
        return None


def may_spin(num_threads: int, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether threads spin while they wait for each other, as far as settings say."""
    return num_threads > 1 and not any(environment.get(name) for name in _SETTINGS)


def waiting_advice(before: CoreTime, after: CoreTime, *, step_s: float) -> str | None:
    """What to say of a run whose threads may spin: of what its thread got between two times, and the seconds of a step. None for nothing."""
    ran_s, waited_s = after.ran_s - before.ran_s, after.waited_s - before.waited_s
    if step_s >= _LONG_STEP_S or waited_s <= 0 or waited_s < _LEAST_SHARE * (ran_s + waited_s):
        return None
    share = waited_s / (ran_s + waited_s)
    return f"Other processes keep the cores busy: this run waits {share:.0%} of its time for a core. {_REMEDY}"


def load_advice(load: float, *, num_cores: int, num_threads: int) -> str | None:
    """What to say of a machine on which threads may spin: of the load without them, over all of its cores. None for nothing."""
    if load + num_threads <= num_cores + _SPARE_CORES:
        return None
    return (
        f"Load {load:.1f} on {num_cores} cores, beside which {num_threads} threads would wait for cores. {_REMEDY}"
    )
