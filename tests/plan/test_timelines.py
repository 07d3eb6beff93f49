"""Simulated epochs of one device take the seconds that are recorded here, whatever becomes of the simulator."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from sagann.plan.residency import place
from sagann.plan.simulate import Tier, simulate
from sagann.plan.steps import Block, Plan, Step
from tests.plan.machines import ROUND, with_disk

CPU = with_disk(
    replace(ROUND, pick_bytes=900.0), read_bytes_per_s=400.0, write_bytes_per_s=200.0, cached_bytes_per_s=700.0
)
DEVICE = replace(CPU, host_to_device_bytes=1200.0, device_to_host_bytes=1100.0)


def epoch(seed: int, lookahead: int) -> Plan:
    """Three hundred steps over forty blocks, of which a third fit into memory; some rows are picked."""
    random = Random(seed)
    names = [Block("value", "x", number) for number in range(20)]
    chunks = [Block("edges", "csc", number, 0) for number in range(20)]
    sizes = {block: random.randint(20, 100) for block in [*names, *chunks]}
    steps = []
    for number in range(300):
        reads, chunk = random.sample(names, 2), random.choice(chunks)
        if random.random() < 0.2:
            reads.append(random.choice(names)._replace(needed_by=chunk))
        steps.append(
            Step(
                kind="return" if number == 150 else "gather",
                number=number,
                interval=0,
                reads=(chunk, *reads),
                writes=(reads[0],) if random.random() < 0.5 else (),
                temporary_bytes=random.randint(0, 50),
            )
        )
    return place(
        steps,
        bytes_of=lambda block: sizes[block.whole] // (1 if block.needed_by is None else 4),
        initial=sizes,
        bounds=(0, 1),
        budget_bytes=900,
        lookahead=lookahead,
    )


def seconds(plan: Plan, tier: Tier, *, on_device: bool) -> float:
    timeline = simulate(plan, lambda step: 0.05 + step.number % 7 / 20, DEVICE if on_device else CPU, tier=tier)
    assert timeline.busy_s("compute") <= timeline.seconds
    return timeline.seconds


CASES: list[tuple[int, int, bool, Tier, float]] = [
    (0, 2, False, "memory", 94.9205556),
    (0, 2, False, "file cache", 118.091151),
    (0, 2, False, "disk", 105.778472),
    (0, 2, True, "memory", 61.7166919),
    (0, 2, True, "file cache", 74.3652381),
    (0, 2, True, "disk", 84.6372222),
    (1, 2, False, "memory", 87.5224444),
    (1, 2, False, "file cache", 106.016429),
    (1, 2, False, "disk", 95.8734722),
    (1, 2, True, "memory", 61.3205051),
    (1, 2, True, "file cache", 71.7523016),
    (1, 2, True, "disk", 77.8183333),
    (2, 0, False, "memory", 84.0371111),
    (2, 0, False, "file cache", 101.416825),
    (2, 0, False, "disk", 120.542083),
    (2, 0, True, "memory", 77.7959596),
    (2, 0, True, "file cache", 95.4697619),
    (2, 0, True, "disk", 115.633611),
]


@pytest.mark.parametrize(("seed", "lookahead", "on_device", "tier", "expected"), CASES)
def test_an_epoch_takes_the_seconds_that_are_recorded(
    seed: int, lookahead: int, on_device: bool, tier: Tier, expected: float
) -> None:
    assert seconds(epoch(seed, lookahead), tier, on_device=on_device) == pytest.approx(expected, rel=1e-8)
