"""Exchanges of workers' parts run beside the steps of their plans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from sagann.plan.epoch import Planned
from sagann.plan.spec import PlanError, verify
from sagann.plan.steps import UNLIMITED, Block, Exchanged, Move, Plan, Step
from sagann.plan.travel import travelling
from sagann.plan.waits import waits_of
from tests.plan.test_exchanges import MODELS, cuts_of, planned

BEGINS, ENDS = "begin_exchange", ("exchange", "exchange_grad")


def value(name: str, interval: int) -> Block:
    return Block("value", name, interval)


def sent(name: str, interval: int) -> Block:
    return Block("sent", name, interval, 1)


def made(name: str, interval: int) -> Iterator[Step]:
    """An interval of a value is made, and what others need of it is copied."""
    yield Step("transform", 0, interval, writes=(value(name, interval),), temporary_bytes=7)
    yield Step("collect", 0, interval, reads=(value(name, interval),), writes=(sent(name, interval),))


def exchange(name: str, sends: Sequence[int], receives: Sequence[int]) -> Step:
    exchanged = Exchanged(
        name, tuple(sent(name, each) for each in sends), tuple(value(name, each) for each in receives)
    )
    return Step("exchange", 0, 0, exchanged=exchanged)


def gather(name: str, src: int, dst: int = 0) -> Step:
    return Step("gather", 0, src, dst, reads=(value(name, src),), temporary_bytes=5)


def kinds(steps: Sequence[Step]) -> list[str]:
    return [f"{step.kind} {step.exchanged.value}" if step.exchanged else step.kind for step in steps]


def test_rows_travel_from_where_the_first_are_made_to_where_one_is_read() -> None:
    gathers = [gather("h", src) for src in range(3)]
    steps = [*made("h", 0), *made("h", 1), exchange("h", [0, 1], [2]), *gathers, Step("finish", 0, 0)]
    found = travelling(steps)
    assert ", ".join(kinds(found)) == (
        "transform, begin_exchange h, collect, transform, send_rows h, collect, send_rows h, "
        "gather, gather, exchange h, gather, finish"
    )


def steps_of(found: Planned) -> list[Step]:
    return [each for each in found.plan.operations if isinstance(each, Step)]


def spans(steps: Sequence[Step]) -> Iterator[tuple[Exchanged, list[Step]]]:
    """Each exchange with the steps that run while it is under way."""
    for number, step in enumerate(steps):
        if step.kind == BEGINS and step.exchanged is not None:
            key = step.exchanged.key
            length = next(
                at
                for at, each in enumerate(steps[number:])
                if each.kind in ENDS and each.exchanged and each.exchanged.key == key
            )
            yield step.exchanged, steps[number + 1 : number + length]


@pytest.mark.parametrize("name", MODELS)
def test_chunks_of_own_vertices_are_gathered_while_rows_travel(name: str) -> None:
    for part, intervals in cuts_of(name):
        for found in planned(name, part, intervals, UNLIMITED):
            for exchanged, meanwhile in spans(steps_of(found)):
                assert any(step.kind == "send_rows" for step in meanwhile) == bool(exchanged.sends)
                if exchanged.is_grad:
                    # Gradients of the halo leave one by one, and then own rows are worked on.
                    last = max((at for at, each in enumerate(meanwhile) if each.kind == "send_rows"), default=-1)
                    assert any(each.kind == "gather_grad" for each in meanwhile[last + 1 :])
                    continue
                if not any(step.kind == "gather" for step in steps_of(found)):
                    # Features alone are kept for the epochs.
                    assert exchanged.value == "x"
                    continue
                chunks = [step for step in meanwhile if step.kind == "gather"]
                read = {block for step in chunks for block in step.reads}
                assert not read & set(exchanged.receives)
                own = {value(exchanged.value, interval) for interval in intervals.own}
                assert read & own


def plan_with(operations: Sequence[Step | Move]) -> Plan:
    return Plan(operations=tuple(operations), bounds=(0, 1), budget_bytes=UNLIMITED, peak_bytes=UNLIMITED)


ROWS = sent("h", 0)
EXCHANGED = Exchanged("h", (ROWS,), (value("h", 2),))
BEGIN = Step("begin_exchange", 0, 0, exchanged=EXCHANGED)
MAKE = Step("collect", 0, 0, writes=(ROWS,))
STORE, DROP = Move("store", ROWS, 8), Move("drop", ROWS, 8)
SEND = Step("send_rows", 0, 0, exchanged=EXCHANGED._replace(receives=()))
END = Step("exchange", 0, 0, exchanged=EXCHANGED._replace(sends=()))


def test_a_load_of_what_comes_waits_for_the_end_of_the_exchange_and_what_is_sent_is_stored() -> None:
    picked = value("h", 2)._replace(needed_by=Block("edges", "csc", 2, 0))
    loads = [Move("load", value("h", 2), 8), Move("load", picked, 8)]
    operations = [BEGIN, MAKE, STORE, DROP, SEND, END, *loads]
    verify(plan_with(operations[:6]))
    found = waits_of(operations, UNLIMITED, has_engines=False)
    assert found[operations.index(SEND)] == (operations.index(STORE),)
    assert found[operations.index(END)] == ()
    assert all(operations.index(END) in found[operations.index(load)] for load in loads)


@pytest.mark.parametrize(
    ("operations", "why"),
    [
        ([MAKE, STORE, DROP, SEND, END], "no exchange of h has begun"),
        ([BEGIN, BEGIN], "h travels already"),
        ([BEGIN, MAKE, DROP, SEND, END], "is sent and does not lie outside"),
        (
            [BEGIN, MAKE, STORE, DROP, SEND, END, BEGIN, Move("load", value("h", 2), 8)],
            "does not lie outside as it was written last",
        ),
        ([BEGIN, MAKE, STORE, DROP, SEND, SEND], "is sent twice, or is not what the exchange began with"),
        ([BEGIN, MAKE, STORE, DROP, END], "ends before all is sent"),
        ([BEGIN, MAKE, STORE, SEND, MAKE, DROP, END], "is written while it travels"),
        (
            [BEGIN, MAKE, STORE, DROP, SEND, replace(END, exchanged=EXCHANGED._replace(sends=(), receives=()))],
            "brings other blocks than it began with",
        ),
        ([BEGIN, MAKE, STORE, DROP, SEND], "the exchange of h never ends"),
    ],
)
def test_a_plan_that_breaks_a_rule_of_exchanges_is_refused(operations: Sequence[Step | Move], why: str) -> None:
    with pytest.raises(PlanError, match=why):
        verify(plan_with(operations))
