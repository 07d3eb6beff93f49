"""Balance: move seeds between trainers, or threads between the processor's tasks; the two functions of Algorithm 1, and a joint optimum.

``balance_work`` and ``balance_thread`` go a part of the way to equal times, and do nothing where times differ by less than a band. The
paper does not print how far they go.

``balanced`` is ours: the seeds and threads with which the slowest stage is fastest. All trainers end together, after T seconds. A trainer
that needs a + b n seconds for n seeds has (T - a) / b of them, or none if a is T or more. The more threads train, the smaller T is, and the
longer the others sample and load. So the best number is where these two meet, which is found by bisection.

References:
    Lin and Prasanna, HyScale-GNN, IPDPS 2023, Sec. IV-A and Algorithm 1.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import replace

from sagann.hybrid.assignment import HOST, Assignment, Threads, split_by, split_evenly
from sagann.hybrid.costs import BAND, Cost, Rates

GAIN = 0.5
"Part of the way to equal times that one decision of Algorithm 1 goes."
FEWEST_SEEDS = 1
"Seeds of a trainer that was never measured, and those that every trainer keeps in Algorithm 1: so its speed becomes known, or stays so."


def balance_work(assignment: Assignment, host_s: float, accelerator_s: float) -> Assignment:
    """Move seeds between the processor and the accelerators, whose slowest takes ``accelerator_s``, so that their seconds come closer.

    The accelerators share their seeds equally.
    """
    if abs(host_s - accelerator_s) <= BAND * max(host_s, accelerator_s):
        return assignment
    total, names = assignment.total, assignment.accelerators
    host = assignment.seeds[HOST]
    # In proportion to the speeds: seeds over seconds, each times both seconds.
    speed, other_speed = host * accelerator_s, (total - host) * host_s
    # If one of both has no speed yet, it gets half of the seeds, and its speed is known.
    wanted = total * speed / (speed + other_speed) if speed and other_speed else total / 2
    step = GAIN * (wanted - host)
    # At least one seed, so that rounding does not end the way early.
    host += round(step) or (1 if step > 0 else -1)
    host = min(max(host, FEWEST_SEEDS), total - FEWEST_SEEDS * len(names))
    others = dict(zip(names, split_evenly(total - host, len(names)), strict=True))
    return replace(assignment, seeds={name: others.get(name, host) for name in assignment.seeds})


def balance_thread(assignment: Assignment, giver: str, taker: str, giver_s: float, taker_s: float) -> Assignment:
    """Move threads from one of 'sample', 'load' and 'train' to another: at least one, unless the giver would then be as slow as the taker
    is.
    """
    if taker_s <= giver_s * (1 + BAND):
        return assignment
    given, taken = getattr(assignment.threads, giver), getattr(assignment.threads, taker)
    # With n threads moved, both take equally long: giver_s given / (given - n) = taker_s taken / (taken + n).
    even = given * taken * (taker_s - giver_s) / (giver_s * given + taker_s * taken)
    count = max(1, int(GAIN * even))
    if count >= given or giver_s * given / (given - count) >= taker_s:
        return assignment
    return replace(assignment, threads=replace(assignment.threads, **{giver: given - count, taker: taken + count}))


def balanced(assignment: Assignment, rates: Rates, *, uses_host: bool = True) -> Assignment:
    """The assignment whose slowest stage is fastest, by the costs of the trainers. A trainer that would be the slowest stage with few seeds gets none.

    A processor that does not train (``uses_host``) gets no seed, and one thread.
    """
    total, num_threads = assignment.total, assignment.threads.total
    trainers = assignment.seeds if uses_host else assignment.accelerators

    def costs(threads: Threads) -> dict[str, Cost]:
        found = {name: rates.cost(name, threads.train) for name in trainers}
        return {name: cost for name, cost in found.items() if cost is not None}

    def prepared_s(threads: Threads) -> float:
        return total * max(rates.sample / threads.sample, rates.load / threads.load)

    def slowest(threads: Threads) -> float:
        return max(seconds_together(costs(threads), total), prepared_s(threads))

    def divisions(train: int) -> list[Threads]:
        """Threads that do not train, divided between sampling and loading by their work."""
        rest, work = num_threads - train, rates.sample + rates.load
        share = int(rest * rates.sample / work) if work else rest // 2
        samples = (min(max(share + up * bool(work), 1), rest - 1) for up in (0, 1))
        return [Threads(sample=sample, load=rest - sample, train=train) for sample in samples]

    def trains_long_enough(train: int) -> bool:
        found = divisions(train)
        return seconds_together(costs(found[0]), total) <= min(map(prepared_s, found))

    now = assignment.threads
    numbers = range(1, num_threads - 1) if uses_host else range(1, 2)
    meet = bisect_left(numbers, True, key=trains_long_enough)
    near = {*numbers[max(0, meet - 1) : meet + 1], now.train} & {*numbers}
    candidates = [each for train in sorted(near) for each in divisions(train)]
    # Among equals, the one nearest the present threads.
    threads = min(
        candidates, key=lambda each: (slowest(each), abs(each.train - now.train), abs(each.load - now.load))
    )
    known = costs(threads)
    if known:
        seeds = {name: 0 if name in known else FEWEST_SEEDS for name in trainers}
        seeds |= split_together(known, total - sum(seeds.values()))
    else:
        seeds = split_by(total, dict.fromkeys(trainers, 1.0))
    return Assignment(seeds={HOST: 0} | seeds, threads=threads)


def seconds_together(costs: Mapping[str, Cost], total: int) -> float:
    """Seconds after which trainers end who share ``total`` seeds and end together; 0 without trainers."""
    ends_s = speed = seeds_late = 0.0
    for cost in sorted(costs.values(), key=lambda each: each.fixed_s):
        if speed and cost.fixed_s >= ends_s:
            # The others have ended before this one could begin with a seed.
            break
        speed += 1 / cost.seed_s
        seeds_late += cost.fixed_s / cost.seed_s
        ends_s = (total + seeds_late) / speed
    return ends_s


def split_together(costs: Mapping[str, Cost], total: int) -> dict[str, int]:
    """``total`` seeds as shares with which trainers end together, as nearly as whole numbers can.

    Example:
        >>> fast, slow = Cost(fixed_s=0.0, seed_s=1.0), Cost(fixed_s=4.0, seed_s=1.0)
        >>> split_together({"host": fast, "accelerator0": slow}, 10)
        {'host': 7, 'accelerator0': 3}
    """
    ends_s = seconds_together(costs, total)
    shares = {name: max(0, int((ends_s - cost.fixed_s) / cost.seed_s)) for name, cost in costs.items()}
    while sum(shares.values()) > total:
        # Rounding of the seconds.
        shares[max(shares, key=shares.__getitem__)] -= 1
    while sum(shares.values()) < total:
        shares[min(shares, key=lambda name: costs[name].of(shares[name] + 1))] += 1
    return shares
