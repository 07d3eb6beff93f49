"""Schedules: what steps read and write, and settings that are replaced."""

from __future__ import annotations

from collections.abc import Iterator

from sagann.plan.fit import hop_sizes
from sagann.plan.gradients import Gradients
from sagann.plan.schedule import Schedule
from sagann.plan.steps import Block, Step
from sagann.plan.sweeps import Traversal
from tests.plan.test_orders import BOUNDS, program_of, schedule_of


def blocks_of(schedule: Schedule) -> Iterator[Block]:
    for step in schedule.epoch():
        yield from step.blocks


def test_a_block_is_one_object_in_all_steps_and_in_rival_schedules() -> None:
    schedule = schedule_of("gat", "column")
    found: dict[Block, Block] = {}
    for each in (schedule, schedule.changed(traversal=Traversal(direction="ascending"))):
        assert all(found.setdefault(block, block) is block for block in blocks_of(each))


def test_every_block_that_is_read_was_written_before_or_exists_at_the_start() -> None:
    schedule = schedule_of("gated-gcn", "column")
    known = {*schedule.initial(), *schedule.upstream()}
    for step in schedule.epoch():
        assert set(step.reads) <= known, step.label
        known |= set(step.writes)


def test_a_setting_is_replaced_and_the_others_stay() -> None:
    schedule = schedule_of("gcn", "row", folded=True)
    every = schedule.all_saves
    saving = schedule.changed(saves=every)
    assert (saving.saves, saving.folded, schedule.saves) == (every, True, frozenset())
    ours, theirs = ([each.label for each in one.epoch()] for one in (saving, schedule))
    assert ours == theirs
    assert any(block.kind == "stage_saved" for block in blocks_of(saving))
    assert not any(block.kind == "stage_saved" for block in blocks_of(schedule))


def test_a_stage_saves_on_the_intervals_that_are_named() -> None:
    schedule = schedule_of("gcn", "column")
    saving = schedule.changed(saves=frozenset(at for at in schedule.all_saves if at[1] == 1))
    assert {block.interval for block in blocks_of(saving) if block.kind == "stage_saved"} == {1}


def test_without_a_gradient_of_features_none_is_given_to_the_caller() -> None:
    program, hops = program_of("gat")
    for wanted in (False, True):
        gradients = Gradients(program, wanted_x=wanted)
        schedule = Schedule(program, hop_sizes(program, hops, BOUNDS), BOUNDS, gradients=gradients)
        steps: list[Step] = list(schedule.epoch())
        assert any(step.kind == "output_grad" for step in steps) == wanted
        assert gradients.has("x") == wanted


def test_what_is_not_trained_has_no_backward() -> None:
    program, _ = program_of("gcn")
    gradients = Gradients(program, trained=frozenset())
    assert not any(map(gradients.leads_from, program.stages))
    assert not any(gradients.passes(gather) for gather in program.gathers)
