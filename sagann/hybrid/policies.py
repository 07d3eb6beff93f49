"""Policies: one decision for each iteration, from the smoothed seconds of its stages (:class:`~sagann.hybrid.costs.Rates`), and why.

- ``static``: nothing changes.
- ``hyscale``: Algorithm 1. It finds the slowest stage and moves seeds or threads to it.
- ``joint``: seeds and threads for which the slowest stage is expected to be the fastest, all at once
  (:func:`~sagann.hybrid.balance.balanced`), by what a mini-batch and each seed of it cost every trainer (:mod:`sagann.hybrid.costs`).

Where we differ from the printed algorithm: its lines 23 and 31 take threads from the fastest stage, which may be an accelerator's and have
none; the text takes them from the fastest task of the processor, and so do we. A task gives no thread if it would then be the slowest. If
the function that the algorithm names can move nothing, the other one is tried: otherwise training that is even between processor and
accelerators would never get the threads that sampling and loading do not need, nor give those that they need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from sagann.hybrid.assignment import HOST, Assignment, StageTimes
from sagann.hybrid.balance import balance_thread, balance_work, balanced
from sagann.hybrid.costs import BAND, Rates

_CPU_STAGES = {"T_SC": "sample", "T_Load": "load", "T_TC": "train"}
_TASKS = {"sample": "sampling", "load": "loading", "train": "training"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Balance:
    """What a policy knows after an iteration, and what it decided."""

    assignment: Assignment
    rates: Rates | None = None
    "Smoothed seconds for a seed; None before the first iteration."
    why: str = "Nothing is measured yet."
    uses_host: bool = True
    "Whether the processor trains, beside sampling and loading."


Decision = tuple[Assignment, str]
"The next assignment, and the reason in words."
Policy = Callable[[Assignment, Rates, bool], Decision]
"From the present assignment and smoothed rates to a decision; the last argument is ``Balance.uses_host``."


def next_balance(
    policy: str, balance: Balance, times: StageTimes, *, ran_with: Assignment | None = None
) -> Balance:
    """One decision: what the next iteration's assignment is, given the measured seconds of this one.

    ``balance`` is as the last iteration left it; ``ran_with`` is the assignment of the measured iteration, by default that of ``balance``.
    """
    measured = Rates.of(ran_with or balance.assignment, times)
    rates = measured if balance.rates is None else balance.rates.after(measured)
    assignment, why = POLICIES[policy](balance.assignment, rates, balance.uses_host)
    return replace(balance, assignment=assignment, rates=rates, why=why)


def static(assignment: Assignment, rates: Rates, uses_host: bool) -> Decision:
    """Keep everything as it is."""
    return assignment, "The policy is static."


def hyscale(assignment: Assignment, rates: Rates, uses_host: bool) -> Decision:
    """Algorithm 1 of the paper, which is about a processor that trains. Sampling is one stage, on whatever device, so it has no T_SA."""
    if not uses_host:
        return assignment, "Algorithm 1 moves nothing where the processor does not train."
    times = rates.times(assignment)
    stages = {"T_SC": times.sample, "T_Load": times.load, "T_TC": times.host_train, "T_Accel": times.accelerator}
    bottleneck, fastest = max(stages, key=stages.__getitem__), min(stages, key=stages.__getitem__)

    def work() -> Decision:
        found = balance_work(assignment, times.host_train, times.accelerator)
        why = f"{_told(times.host_train)} on the processor, {_told(times.accelerator)} on accelerators"
        return found, _said(assignment, found, f"training takes {why}")

    thread = partial(_thread, assignment, times, _CPU_STAGES.get(bottleneck, "train"))
    remedies: list[Callable[[], Decision]] = [thread]
    if bottleneck == "T_Accel" or (bottleneck == "T_TC" and fastest == "T_Accel"):
        # Lines 13 and 14, 26 and 27: work, not threads.
        remedies = [work, thread]
    elif bottleneck == "T_TC" or times.host_train > times.accelerator:
        # A trainer with fewer seeds has threads to give later.
        remedies = [thread, work]
    found = [remedy() for remedy in remedies]
    return next((each for each in found if each[0] != assignment), found[0])


def joint(assignment: Assignment, rates: Rates, uses_host: bool) -> Decision:
    """The best seeds and threads by the costs of the trainers, if they promise more than the band, or if trainers do not end together.

    While all shares that were measured are nearly equal, the fixed parts of costs are not known, and a move may gain more than it promises.
    """
    wanted = balanced(assignment, rates, uses_host=uses_host)
    times, then_s = rates.times(assignment), rates.times(wanted).slowest
    now_s = times.slowest
    trained = [times.train[name] for name, seeds in assignment.seeds.items() if seeds]
    are_together = max(trained) - min(trained) <= BAND * now_s
    if then_s >= now_s * (1 - BAND * are_together):
        return assignment, f"No other split is estimated to take {BAND:.0%} less than {_told(now_s)}."
    said = f"{_changed(assignment, wanted)}: estimated {_told(then_s)} per iteration, was {_told(now_s)}."
    for name, seeds in wanted.seeds.items():
        cost = rates.cost(name, wanted.threads.train)
        if assignment.seeds[name] and not seeds and cost is not None:
            said += f" {'The processor' if name == HOST else name} trains nothing: one seed takes it {_told(cost.of(1))}."
    return wanted, said


POLICIES: Mapping[str, Policy] = {"static": static, "hyscale": hyscale, "joint": joint}


def _thread(assignment: Assignment, times: StageTimes, taker: str) -> Decision:
    seconds = {"sample": times.sample, "load": times.load, "train": times.host_train}
    givers = [name for name in sorted(seconds, key=seconds.__getitem__) if name != taker]
    for giver in givers:
        found = balance_thread(assignment, giver, taker, seconds[giver], seconds[taker])
        if found != assignment:
            return found, _said(
                assignment,
                found,
                f"{_TASKS[taker]} takes {_told(seconds[taker])} on the processor, {_TASKS[giver]} {_told(seconds[giver])}",
            )
    return assignment, f"Nothing is moved: no task of the processor has a thread to give to {_TASKS[taker]}."


def _said(before: Assignment, after: Assignment, why: str) -> str:
    if after == before:
        return f"Nothing is moved: {why}."
    return f"{_changed(before, after)}: {why}."


def _changed(before: Assignment, after: Assignment) -> str:
    parts = []
    seeds = after.seeds[HOST] - before.seeds[HOST]
    if seeds:
        moved = "1 seed goes" if abs(seeds) == 1 else f"{abs(seeds)} seeds go"
        parts.append(f"{moved} {'to' if seeds > 0 else 'from'} the processor")
    elif after.seeds != before.seeds:
        parts.append("Seeds move among the accelerators")
    for name, word in _TASKS.items():
        threads = getattr(after.threads, name) - getattr(before.threads, name)
        if threads:
            noun = "thread" if abs(threads) == 1 else "threads"
            parts.append(f"{word} gets {abs(threads)} {noun} {'more' if threads > 0 else 'fewer'}")
    said = ", ".join(parts)
    return said[:1].upper() + said[1:]


def _told(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
