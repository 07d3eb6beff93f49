"""Dependencies between operations on different resources, worked out by hand."""

from __future__ import annotations

from sagann.plan.dependencies import dependencies_of, route_of
from sagann.plan.steps import Block, Move, Step

A, B = Block("value", "a", 0), Block("value", "b", 0)
SENT = A._replace(owner="device1")
PICKED = A._replace(needed_by=Block("edges", "csc", 0, 0))


def step(*reads: Block, writes: tuple[Block, ...] = (), after: tuple[int, ...] = ()) -> Step:
    return Step(kind="transform", number=0, interval=0, reads=reads, writes=writes, after=after)


def test_a_step_starts_after_the_loads_of_its_blocks_and_only_the_first_one_depends_on_them() -> None:
    loads = (Move("load", A, 1), Move("load", B, 1))
    assert dependencies_of([*loads, step(A, B), step(A)]) == [(), (), (0, 1), ()]


def test_a_step_that_writes_a_block_starts_after_its_store() -> None:
    operations = [step(writes=(A,)), Move("store", A, 1), step(A), step(writes=(A,))]
    assert dependencies_of(operations) == [(), (), (), (1,)]


def test_a_load_takes_the_memory_of_a_dropped_block_once_it_is_stored() -> None:
    operations = [step(writes=(A,)), Move("store", A, 1), Move("drop", A, 1), Move("load", B, 1)]
    assert dependencies_of(operations) == [(), (), (), (1,)]


def test_picked_rows_are_loaded_after_the_store_of_the_whole_block() -> None:
    operations = [step(writes=(A,)), Move("store", A, 1), Move("load", PICKED, 1)]
    assert dependencies_of(operations) == [(), (), (1,)]


def test_a_receive_starts_after_its_send_and_a_drop_after_the_sends_of_its_block() -> None:
    send, receive = Move("send", A, 1, peer="device1"), Move("receive", SENT, 1, peer="device0")
    assert route_of(send) == route_of(receive)
    operations = [receive, Move("load", A, 1), send, Move("drop", A, 1)]
    assert dependencies_of(operations) == [(2,), (), (1,), (1, 2)]


def test_an_all_reduce_starts_after_a_store_and_the_next_step_after_the_all_reduce() -> None:
    operations = [step(writes=(A,)), Move("store", A, 1), Move("all-reduce", A, 1, resource="link0-1"), step(A)]
    assert dependencies_of(operations) == [(), (), (1,), (2,)]


def test_dependencies_that_an_operation_names_itself_come_first() -> None:
    assert dependencies_of([Move("load", A, 1), step(), step(A, after=(1,))]) == [(), (), (1, 0)]
