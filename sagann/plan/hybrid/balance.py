"""Balance: move seeds between trainers, or threads between the processor's tasks; the two functions of Algorithm 1, and a joint optimum.

``balance_work`` moves seeds between the processor and the accelerators, ``balance_thread`` threads from one task of the processor to
another. Both go a part of the way to equal times, and do nothing where times differ by less than a band. The paper does not print how
far they go.

``balanced`` is ours: the seeds and threads with which the slowest stage is fastest, all at once. Its rule: all trainers end together, so
seeds are in proportion to speeds; what is left to find is how many threads train. Every number of them is tried.

All are pure: an assignment and times in, an assignment out.

References:
    Lin and Prasanna, HyScale-GNN, IPDPS 2023, Sec. IV-A and Algorithm 1.
"""

from __future__ import annotations

from dataclasses import replace

from sagann.plan.hybrid.assignment import HOST, Assignment, Threads, split_by, split_evenly
from sagann.plan.hybrid.rates import Damping, Rates

# Fewer seconds for a seed than any clock measures are none.
_LEAST_S = 1e-15
FEWEST_SEEDS = 1
"Seeds that every trainer keeps, so that its speed stays known."


def balance_work(assignment: Assignment, host_s: float, accelerator_s: float, damping: Damping) -> Assignment:
    """Move seeds between the processor and the accelerators, so that their seconds come closer.

    The accelerators share their seeds equally.

    Args:
        assignment: the present one.
        host_s: seconds of the processor's trainer.
        accelerator_s: seconds of the slowest accelerator, with its copies.
        damping: the band, and how far to go.
    """
    if _is_close(host_s, accelerator_s, damping):
        return assignment
    total, names = assignment.total, assignment.accelerators
    host = assignment.seeds[HOST]
    wanted = _equal_share(host, total - host, host_s, accelerator_s)
    host = _nearer(host, wanted, damping.gain, fewest=FEWEST_SEEDS, most=total - FEWEST_SEEDS * len(names))
    others = dict(zip(names, split_evenly(total - host, len(names)), strict=True))
    return replace(assignment, seeds={name: others.get(name, host) for name in assignment.seeds})


def balance_sampling(assignment: Assignment, host_s: float, accelerator_s: float, damping: Damping) -> Assignment:
    """Move seeds to sample between the processor and the accelerators: ``balance_work(T_SC, T_SA)`` of the paper."""
    host = assignment.host_sampled
    if host is None or _is_close(host_s, accelerator_s, damping):
        return assignment
    wanted = _equal_share(host, assignment.total - host, host_s, accelerator_s)
    most = assignment.total - FEWEST_SEEDS
    return replace(assignment, host_sampled=_nearer(host, wanted, damping.gain, fewest=FEWEST_SEEDS, most=most))


def balance_thread(
    assignment: Assignment, giver: str, taker: str, giver_s: float, taker_s: float, damping: Damping
) -> Assignment:
    """Move threads from one of the processor's tasks to another: at least one, unless the giver would then be as slow as the taker is.

    Args:
        assignment: the present one.
        giver: 'sample', 'load' or 'train'.
        taker: another of them.
        giver_s: seconds of the giver.
        taker_s: seconds of the taker.
        damping: the band, and how far to go.
    """
    if taker_s <= giver_s * (1 + damping.band):
        return assignment
    given, taken = getattr(assignment.threads, giver), getattr(assignment.threads, taker)
    # With n threads moved, both take equally long: giver_s given / (given - n) = taker_s taken / (taken + n).
    even = given * taken * (taker_s - giver_s) / (giver_s * given + taker_s * taken)
    count = max(1, int(damping.gain * even))
    if count >= given or giver_s * given / (given - count) >= taker_s:
        return assignment
    return replace(assignment, threads=assignment.threads.moved(count, giver=giver, taker=taker))


def balanced(assignment: Assignment, rates: Rates, *, uses_host: bool = True) -> Assignment:
    """The assignment whose slowest stage is fastest, where seconds are in proportion to seeds and threads.

    Args:
        assignment: the present one, for its totals and trainers.
        rates: seconds of each stage for a seed.
        uses_host: whether the processor trains; otherwise it gets no seed, and one thread.
    """
    total, num_threads = assignment.total, assignment.threads.total
    seconds = {name: rate for name, rate in rates.train.items() if rate > _LEAST_S}
    by_accelerators = sum(1 / each for name, each in seconds.items() if name != HOST)
    host = 1 / seconds[HOST] if uses_host and HOST in seconds else 0.0
    samples_both = assignment.host_sampled is not None and min(rates.sample_accelerator, rates.sample) > _LEAST_S

    def sample_s(threads: int) -> float:
        if not samples_both:
            return rates.sample * assignment.sampled_by_host / threads
        return total / (threads / rates.sample + 1 / rates.sample_accelerator)

    def slowest(threads: Threads) -> float:
        speed = by_accelerators + host * threads.train
        return max(total / speed if speed else 0.0, sample_s(threads.sample), rates.load * total / threads.load)

    candidates = [
        _divided(train, num_threads - train, rates, at)
        for train in (range(1, num_threads - 1) if uses_host else [1])
        for at in (0, 1)
    ]
    # Among equals, the one nearest the present threads.
    now = assignment.threads
    threads = min(
        candidates, key=lambda each: (slowest(each), abs(each.train - now.train), abs(each.load - now.load))
    )
    weights = {name: 1 / seconds[name] if name in seconds else 0.0 for name in assignment.seeds}
    weights[HOST] = host * threads.train
    if not uses_host:
        seeds = {HOST: 0} | split_by(total, {name: weights[name] for name in assignment.accelerators})
    else:
        seeds = split_by(total, weights, fewest=FEWEST_SEEDS)
    sampled = assignment.host_sampled
    if samples_both:
        speeds = {HOST: threads.sample / rates.sample, "": 1 / rates.sample_accelerator}
        sampled = split_by(total, speeds, fewest=FEWEST_SEEDS)[HOST]
    return Assignment(seeds=seeds, threads=threads, host_sampled=sampled)


def _divided(train: int, rest: int, rates: Rates, up: int) -> Threads:
    """Threads that do not train, divided between sampling and loading by their work."""
    work = rates.sample + rates.load
    sample = int(rest * rates.sample / work) + up if work else rest // 2
    sample = min(max(sample, 1), rest - 1)
    return Threads(sample=sample, load=rest - sample, train=train)


def _is_close(first_s: float, second_s: float, damping: Damping) -> bool:
    return abs(first_s - second_s) <= damping.band * max(first_s, second_s)


def _equal_share(host: int, others: int, host_s: float, others_s: float) -> float:
    """Seeds of the host with which both take equally long, from the seconds for the present ones."""
    # In proportion to the speeds: seeds over seconds, each times both seconds.
    speed, other_speed = host * others_s, others * host_s
    if not speed or not other_speed:
        # One of both has no speed yet: halfway, and it is known.
        return (host + others) / 2
    return (host + others) * speed / (speed + other_speed)


def _nearer(now: int, wanted: float, gain: float, *, fewest: int, most: int) -> int:
    step = gain * (wanted - now)
    # At least one seed, so that rounding does not end the way early.
    moved = now + (round(step) or (1 if step > 0 else -1))
    return min(max(moved, fewest), most)
