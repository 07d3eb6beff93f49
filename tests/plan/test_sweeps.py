"""Traversal: any order of intervals and chunks gives a valid plan, and the default moves the fewest bytes."""

from __future__ import annotations

from collections import Counter, defaultdict

from hypothesis import given, settings, strategies as st

from sagann.plan.beside import FILES
from sagann.plan.epoch import plan_epoch
from sagann.plan.fit import fitted_intervals, hop_sizes
from sagann.plan.sizes import needed_bytes
from sagann.plan.spec import verify
from sagann.plan.steps import UNLIMITED, Step
from sagann.plan.strips import chunk_ends
from sagann.plan.sweeps import PassKey, Sweeps, Traversal
from tests.plan.test_schedule import BOUNDS, placed, program_of, schedule_of

COUNT = len(BOUNDS) - 1
MOST_PASSES = 2
"Layers, and passes of a gather's backward."


def keys() -> list[PassKey]:
    forward = [PassKey("gather", number) for number in range(MOST_PASSES)]
    backward = [
        PassKey("gather_grad", number, each + 1) for number in range(MOST_PASSES) for each in range(MOST_PASSES)
    ]
    return forward + backward


def any_visits() -> st.SearchStrategy[Traversal]:
    order = st.permutations(range(COUNT)).map(tuple)
    strips = st.tuples(st.sampled_from(keys()), st.integers(0, COUNT - 1))
    return st.builds(
        Traversal,
        direction=st.sampled_from(["ascending", "zigzag"]),
        widths=st.dictionaries(st.sampled_from(keys()), st.integers(1, COUNT)),
        refined=st.dictionaries(strips, order),
    )


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(["gat", "maxpool-gcn"]), any_visits(), st.booleans())
def test_any_order_of_visits_gives_a_valid_plan(name: str, traversal: Traversal, folded: bool) -> None:
    schedule = schedule_of(name, folded=folded, traversal=traversal)
    steps = list(schedule.epoch())
    usual = Counter(map(_identity, schedule_of(name, folded=folded).epoch()))
    assert Counter(map(_identity, steps)) == usual
    for budget_bytes in (needed_bytes(steps, schedule.sizes.of), UNLIMITED):
        verify(placed(schedule, budget_bytes), steps)


def _identity(step: Step) -> tuple[object, ...]:
    """What a step does; whether its state was begun before depends on the order."""
    reads = frozenset(block for block in step.reads if block.kind != "state")
    return step.kind, step.number, step.backward_pass, step.interval, step.dst_interval, reads, step.writes


@settings(max_examples=12, deadline=None)
@given(any_visits())
def test_extrema_meet_their_chunks_in_ascending_order(traversal: Traversal) -> None:
    met: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for step in schedule_of("maxpool-gcn", traversal=traversal).epoch():
        if step.kind == "gather":
            met[step.number, step.dst_interval].append(step.interval)
    assert all(others == sorted(others) for others in met.values())
    assert met


def test_chunks_zigzag_from_strip_to_strip() -> None:
    key = PassKey("gather", 0)
    (one, two), (three, four) = (Sweeps(Traversal(widths={key: 2}), 3).strips(key) for _ in range(2))
    assert (one, two) == (three, four) == (((0, 1), (0, 1, 2)), ((2,), (2, 1, 0)))
    ends = [
        ends
        for step in schedule_of("gated-gcn").epoch()
        if (ends := chunk_ends(step)) is not None and ends[0] == key
    ]
    # Downwards: the first stage went up.
    assert [ends[1:] for ends in ends[: COUNT + 1]] == [*((3, other) for other in (3, 2, 1, 0)), (2, 0)]


def test_strips_are_as_wide_as_memory_allows_and_move_fewer_bytes() -> None:
    program, hops = program_of("gated-gcn")
    gradients = schedule_of("gated-gcn").gradients
    won = []
    for budget_bytes in (20_000, 40_000, 1 << 30):
        part = fitted_intervals(program, hops, budget_bytes, gradients=gradients, beside=FILES, is_square=True)
        sizes = hop_sizes(program, hops, part)
        moved = {}
        for traversal in (None, Traversal(), Traversal(direction="ascending")):
            found = plan_epoch(
                program, sizes, part, budget_bytes, gradients=gradients, traversal=traversal, beside=FILES
            )
            assert found.plan.peak_bytes <= budget_bytes
            moved[None if traversal is None else traversal.direction] = found.plan.moved_bytes
        assert moved[None] <= moved["zigzag"] <= moved["ascending"]
        won.append(moved[None] / moved["ascending"])
    assert min(won) < 0.9
    assert won[-1] == 1.0, "where everything fits there is nothing to gain"
