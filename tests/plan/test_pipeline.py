"""Epochs of mini-batches take the seconds that they take on paper."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sagann.plan.pipeline import (
    FEWEST_SIMULATED,
    PipelinedEpoch,
    PipelineStage,
    StageWork,
    bottleneck_of,
    pipeline_plan,
    simulate_epoch,
    with_options,
)
from sagann.plan.spec import verify
from sagann.plan.timeline import Timeline

MANY_CORES = 64


def stage(
    name: str, seconds: float, *, cores: float = 1.0, last_s: float | None = None, threads: int = 1
) -> PipelineStage:
    last = StageWork(seconds=seconds if last_s is None else last_s, cores=cores)
    work = StageWork(seconds=seconds, cores=cores)
    return PipelineStage(name=name, threads=threads, is_threaded=name != "train", work=work, last=last)


def epoch(*stages: PipelineStage, batches: int, ahead: int) -> PipelinedEpoch:
    return PipelinedEpoch(stages=stages, num_batches=batches, ahead=ahead)


def starts(timeline: Timeline, resource: str) -> list[float]:
    found = [span.start_s for span in timeline.spans if span.resource == resource]
    return [pytest.approx(start_s) for start_s in sorted(found)]


def test_stages_overlap_and_the_slowest_one_sets_the_pace() -> None:
    # sample  0-1 1-2 2-3 3-4
    # load        1-3     3-5     5-7     7-9
    # train           3-4     5-6     7-8     9-10
    found = simulate_epoch(
        epoch(stage("sample", 1), stage("load", 2), stage("train", 1), batches=4, ahead=4), MANY_CORES
    )
    assert starts(found.timeline, "sample") == [0, 1, 2, 3]
    assert starts(found.timeline, "load") == [1, 3, 5, 7]
    assert starts(found.timeline, "train") == [3, 5, 7, 9]
    assert found.seconds == pytest.approx(10)
    assert bottleneck_of(found).name == "load"


def test_at_most_so_many_batches_are_on_their_way() -> None:
    # sample  0-1 1-2      3-4 (batch 0 is taken at 2)  7-8 (batch 1 is taken at 6)
    # load        1-2 2-3      4-5                          8-9
    # train           2-6          6-10                         10-14  14-18
    stages = (stage("sample", 1), stage("load", 1), stage("train", 4))
    found = simulate_epoch(epoch(*stages, batches=4, ahead=2), MANY_CORES)
    assert starts(found.timeline, "sample") == [0, 1, 2, 6]
    assert starts(found.timeline, "train") == [2, 6, 10, 14]
    # With one batch ahead, the next one is begun when this one is taken.
    found = simulate_epoch(epoch(*stages, batches=4, ahead=1), MANY_CORES)
    assert starts(found.timeline, "sample") == [0, 2, 6, 10]
    # A batch that takes longer than the step that it is made beside is waited for.
    slow = (stage("sample", 3), stage("train", 1))
    assert starts(simulate_epoch(epoch(*slow, batches=3, ahead=1), MANY_CORES).timeline, "train") == [3, 6, 9]


def test_batches_of_a_window_are_sampled_ahead_of_loading() -> None:
    stages = stage("sample", 1), stage("load", 1), stage("train", 5)
    with_window = replace(epoch(*stages, batches=6, ahead=1), window=2)
    found = simulate_epoch(with_window, MANY_CORES)
    assert starts(found.timeline, "train") == [2, 7, 12, 17, 22, 27]
    assert starts(found.timeline, "sample") == [0, 1, 2, 3, 7, 12]
    assert starts(found.timeline, "load") == [1, 2, 7, 12, 17, 22]
    assert with_options(with_window, threads=1, ahead=3).window == 3
    assert with_options(epoch(*stages, batches=6, ahead=1), threads=1, ahead=3).window == 0


def test_without_batches_ahead_one_thread_does_everything() -> None:
    found = simulate_epoch(
        epoch(stage("sample", 1), stage("load", 2), stage("train", 3), batches=5, ahead=0), MANY_CORES
    )
    assert found.seconds == pytest.approx(30)
    assert {span.resource for span in found.timeline.spans} == {"train"}


def test_threads_of_a_stage_take_turns() -> None:
    # sample  0-4 and 0-4, 4-8 and 4-8; train 4-5 5-6 8-9 9-10
    found = simulate_epoch(epoch(stage("sample", 4, threads=2), stage("train", 1), batches=4, ahead=4), MANY_CORES)
    assert starts(found.timeline, "sample0") == [0, 4]
    assert starts(found.timeline, "sample1") == [0, 4]
    assert starts(found.timeline, "train") == [4, 5, 8, 9]
    assert with_options(found.epoch, threads=3, ahead=9).stages[0].threads == 3
    assert with_options(found.epoch, threads=3, ahead=9).stages[1].threads == 1


def test_stages_that_compete_for_two_cores_take_their_work_over_the_cores() -> None:
    # A step of both cores beside a sampler of one: every thread has two thirds of a core. The sampler is as slow as the step while both
    # run, so 1 s of sampling takes 1.5 s; then the step has 1 s less to do, alone.
    # sample 0-1 (batch 0), then beside the step of batch 0: 1-2.5
    # train  1 to 2.5 has done 1 of 2 s; alone from 2.5 to 3.5; batch 1: 3.5-5.5
    found = simulate_epoch(epoch(stage("sample", 1), stage("train", 2, cores=2), batches=2, ahead=1), 2)
    assert starts(found.timeline, "sample") == [0, 1]
    assert starts(found.timeline, "train") == [1, 3.5]
    assert found.seconds == pytest.approx(5.5)
    # A long epoch takes the work of all stages over two cores: (1 + 4) / 2 s for each batch, but for the first and the last.
    found = simulate_epoch(epoch(stage("sample", 1), stage("train", 2, cores=2), batches=101, ahead=4), 2)
    assert found.seconds == pytest.approx(1 + 100 * 2.5 + 2, rel=1e-3)
    assert found.busy_cores == pytest.approx(1, abs=0.01)
    assert bottleneck_of(found).name == "train"


def test_a_stage_that_waits_for_a_disk_leaves_the_cores_to_others() -> None:
    # Loading keeps a tenth of a core busy: the step of two cores is slowed by a twentieth.
    found = simulate_epoch(
        epoch(stage("load", 3, cores=0.1), stage("train", 1.9, cores=2), batches=100, ahead=4), 2
    )
    assert found.seconds == pytest.approx(300 + 1.9)
    assert bottleneck_of(found).name == "load"
    assert found.busy_cores == pytest.approx((0.3 + 3.8) / 6, rel=0.01)


@pytest.mark.parametrize("ahead", [0, 1, 4, 40])
@pytest.mark.parametrize("num_cores", [2, MANY_CORES])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_long_epoch_is_that_of_its_period(
    ahead: int, num_cores: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = (
        stage("sample", 0.013, threads=threads),
        stage("load", 0.007, cores=0.6, threads=threads),
        stage("train", 0.011, cores=1.7, last_s=0.002),
    )
    whole = epoch(*stages, batches=FEWEST_SIMULATED * 3 + 7, ahead=ahead)
    found = simulate_epoch(whole, num_cores)
    with monkeypatch.context() as patch:
        patch.setattr("sagann.plan.pipeline.FEWEST_SIMULATED", whole.num_batches)
        simulated = simulate_epoch(whole, num_cores)
    assert len(found.timeline.spans) < len(simulated.timeline.spans) == 3 * whole.num_batches
    assert found.seconds == pytest.approx(simulated.seconds, rel=2e-3)
    # And as quick to foretell for any number of batches.
    most = simulate_epoch(replace(whole, num_batches=10**9), num_cores)
    assert most.seconds / 10**9 == pytest.approx(found.seconds / whole.num_batches, rel=0.05)


def test_one_batch_goes_through_all_stages() -> None:
    one = epoch(stage("sample", 9, last_s=1), stage("train", 9, last_s=2), batches=1, ahead=4)
    assert simulate_epoch(one, 2).seconds == pytest.approx(3)
    assert simulate_epoch(replace(one, begin_s=0.5), 2).seconds == pytest.approx(3.5)
    slowed = simulate_epoch(replace(one, begin_s=0.5, slowdown=2.0), 2)
    assert slowed.seconds == pytest.approx(7)
    # Of two cores one is busy, but not before the batch begins.
    assert slowed.busy_cores == pytest.approx(3 / 3.5 / 2)
    assert one.alone_s(one.stages[0]) == 1


def test_operations_keep_the_rules_of_plans() -> None:
    plan = pipeline_plan(
        epoch(stage("sample", 1, threads=2), stage("load", 1), stage("train", 1), batches=5, ahead=2)
    )
    assert set(verify(plan).values()) == {0}
    assert [each.label for each in plan.operations[:4]] == ["stage 0: 0", "stage 1: 0", "stage 2: 0", "stage 0: 1"]
    assert [each.owner for each in plan.operations[:4]] == ["sample0", "load", "train", "sample1"]
    # Batch 2 begins when batch 0 is taken: ready, with no step before it; batch 3 when batch 1 is ready and step 0 has ended.
    assert plan.operations[6].after == (1,)
    assert plan.operations[9].after == (2, 4)
