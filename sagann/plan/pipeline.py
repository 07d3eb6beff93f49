"""Pipeline: the operations of an epoch of mini-batches, and the seconds that they take together.

Each thread of a stage is a resource. So is the thread that trains, which is the last stage and uses several cores. All of them share the
cores of one processor. An operation is one stage's work on one batch, and waits as the pipeline does
(:mod:`sagann.runtime.loading.pipeline`):

- A stage works on a batch after the stage before has. Each of a stage's threads takes the next batch; with batches of equal work, the
  threads take turns.
- At most ``ahead`` batches are on their way. So the first stage begins with batch ``b`` when the training thread has taken batch
  ``b - ahead``: that batch is ready, and the step before it has ended. If ``window`` further batches are sampled ahead, this holds for the
  stage that loads, and the first stage begins ``window`` batches earlier.
- With ``ahead`` 0, the training thread does all the work, one stage after the other.

All whole batches have the same work, and the last batch of an epoch may have less. So the pipeline becomes periodic after a few batches:
a long epoch is simulated up to some number of batches, and the others take the seconds of the period.

References:
    Lin and Prasanna, HyScale-GNN, IPDPS 2023, Sec. V (a performance model of the stages). We differ in that stages compete for cores,
    and that an epoch is simulated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from sagann.plan.machine import DISK, Disk, Machine
from sagann.plan.simulate import simulate
from sagann.plan.steps import UNLIMITED, Plan, Step
from sagann.plan.timeline import Timeline

LOADING = "load"
"Name of the stage that loads features."
FEWEST_SIMULATED = 256
"Batches of a long epoch that are simulated; more if many batches may be on their way."
# Batches that are simulated for each batch that may be on its way: the pipeline is full after some, and runs empty at the last ones.
_PER_AHEAD = 8
# Share of its seconds that a stage takes where it is tried whether its speed matters.
_FASTER = 0.9


@dataclass(frozen=True, kw_only=True, slots=True)
class StageWork:
    """The work of a stage on one batch."""

    seconds: float
    "Seconds when nothing runs beside the stage."
    cores: float = 1.0
    "Number of cores that the stage keeps busy in these seconds, on average, above 0; less than the stage's threads where it waits."


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineStage:
    """A stage, and its work on the batches of an epoch."""

    name: str
    "Name of the stage."
    threads: int = 1
    "Number of threads that work on different batches."
    is_threaded: bool = False
    "Whether the user may choose the number of threads."
    work: StageWork
    "Work on each batch but the last one."
    last: StageWork
    "Work on the last batch, which may be smaller."

    def faster(self, share: float) -> PipelineStage:
        """The stage with ``share`` of the seconds."""
        work, last = (replace(each, seconds=share * each.seconds) for each in (self.work, self.last))
        return replace(self, work=work, last=last)


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelinedEpoch:
    """An epoch of mini-batches that go through stages."""

    stages: tuple[PipelineStage, ...]
    "The stages, in order. The last one is the training step, which has one thread."
    num_batches: int
    "Number of batches, at least 1."
    ahead: int
    "Most batches that are on their way; 0 if the training thread does all the work."
    window: int = 0
    "Number of batches that are sampled ahead of these, and not yet loaded."
    begin_s: float = 0.0
    "Seconds before the first batch begins."
    slowdown: float = 1.0
    """Seconds of an epoch over those that the work and the cores explain: what stages lose beside one another, for example in caches and
    memory bandwidth."""

    def work_of(self, step: Step) -> StageWork:
        """The work of an operation."""
        stage = self.stages[step.number]
        return stage.last if step.interval == self.num_batches - 1 else stage.work

    def alone_s(self, stage: PipelineStage) -> float:
        """Seconds of a stage's work on all batches, if each of its threads had a core to itself and waited for nothing."""
        return ((self.num_batches - 1) * stage.work.seconds + stage.last.seconds) / stage.threads

    @property
    def core_s(self) -> float:
        """Seconds of work of all stages, counted once for each core that is busy."""
        return sum(
            (self.num_batches - 1) * stage.work.seconds * stage.work.cores + stage.last.seconds * stage.last.cores
            for stage in self.stages
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedEpoch:
    """An epoch as the simulator runs it."""

    epoch: PipelinedEpoch
    "What was simulated."
    num_cores: int
    "Number of cores that the stages share."
    seconds: float
    "Seconds of the whole epoch."
    timeline: Timeline = field(repr=False)
    "Its first batches, and the last one, without the slowdown."

    @property
    def busy_cores(self) -> float:
        """Share of the cores that is busy, from 0 to 1."""
        core_s = self.epoch.slowdown * self.epoch.core_s
        return min(1.0, core_s / (self.num_cores * self.seconds)) if self.seconds else 0.0


def pipeline_plan(epoch: PipelinedEpoch) -> Plan:
    """The operations of all batches of an epoch, in the order in which they begin on each resource."""
    stages = epoch.stages
    operations: list[Step] = []
    for batch in range(epoch.num_batches):
        for number, stage in enumerate(stages):
            first = batch * len(stages)
            after = [first + number - 1] if number else []
            ahead = _ahead_of(epoch, number)
            if 0 < ahead <= batch:
                taken = (batch - ahead) * len(stages)
                # The taken batch is ready, and the training step before it has ended.
                after += [before for before in (taken - 1, taken + len(stages) - 2) if before >= 0]
            operations.append(
                Step(
                    kind="stage",
                    number=number,
                    interval=batch,
                    resource=_resource(epoch, stage, batch),
                    after=tuple(after),
                )
            )
    return Plan(
        operations=tuple(operations),
        bounds=(0, epoch.num_batches),
        budget_bytes=UNLIMITED,
        peak_bytes=0,
        ahead=epoch.ahead > 0,
    )


def _ahead_of(epoch: PipelinedEpoch, number: int) -> int:
    """Most batches on their way where a stage begins with a further one; 0 for a stage that does not ask."""
    if number == 0:
        return epoch.ahead + epoch.window
    return epoch.ahead if epoch.window and epoch.stages[number].name == LOADING else 0


def simulate_epoch(epoch: PipelinedEpoch, num_cores: int) -> SimulatedEpoch:
    """Simulate an epoch on a processor; a long one up to a number of batches after which the pipeline is periodic."""
    most = max(
        FEWEST_SIMULATED, _PER_AHEAD * (epoch.ahead + epoch.window + max(stage.threads for stage in epoch.stages))
    )
    simulated = replace(epoch, num_batches=min(epoch.num_batches, most))
    timeline = simulate(
        pipeline_plan(simulated),
        lambda step: simulated.work_of(step).seconds,
        _cores_alone(num_cores),
        step_cores=lambda step: simulated.work_of(step).cores,
    )
    seconds = epoch.begin_s + timeline.seconds
    if simulated.num_batches < epoch.num_batches:
        seconds += (epoch.num_batches - simulated.num_batches) * _period_s(simulated, timeline)
    return SimulatedEpoch(epoch=epoch, num_cores=num_cores, seconds=epoch.slowdown * seconds, timeline=timeline)


def bottleneck_of(simulated: SimulatedEpoch) -> PipelineStage:
    """The stage whose speed matters most: the epoch becomes shortest if this stage takes a tenth less time for every batch."""
    epoch = simulated.epoch

    def seconds_with_faster(number: int) -> float:
        stages = [each.faster(_FASTER) if at == number else each for at, each in enumerate(epoch.stages)]
        return simulate_epoch(replace(epoch, stages=tuple(stages)), simulated.num_cores).seconds

    return epoch.stages[min(range(len(epoch.stages)), key=seconds_with_faster)]


def with_options(epoch: PipelinedEpoch, *, threads: int, ahead: int) -> PipelinedEpoch:
    """The epoch with other numbers of threads that sample and load, and of batches ahead. A window is as long as these."""
    stages = tuple(replace(stage, threads=threads) if stage.is_threaded else stage for stage in epoch.stages)
    return replace(epoch, stages=stages, ahead=ahead, window=ahead if epoch.window else 0)


def _resource(epoch: PipelinedEpoch, stage: PipelineStage, batch: int) -> str:
    if not epoch.ahead:
        return epoch.stages[-1].name
    return f"{stage.name}{batch % stage.threads}" if stage.threads > 1 else stage.name


def _period_s(simulated: PipelinedEpoch, timeline: Timeline) -> float:
    """Seconds from one batch to the next one while the pipeline is full."""
    trained = f"stage {len(simulated.stages) - 1}:"
    ends = [span.start_s + span.seconds for span in timeline.spans if span.name.startswith(trained)]
    first = simulated.num_batches // 2
    # Later, no stage has batches left to make.
    last = (
        simulated.num_batches
        - 2
        - simulated.ahead
        - simulated.window
        - max(stage.threads for stage in simulated.stages)
    )
    return (ends[last] - ends[first]) / (last - first)


def _cores_alone(num_cores: int) -> Machine:
    """A machine of which only the cores are known. The operations of a pipeline copy nothing by themselves."""
    return Machine(
        name="cores",
        num_cores=num_cores,
        matmul_flops=math.inf,
        stream_bytes=math.inf,
        gather_bytes=math.inf,
        gather_cached_bytes=math.inf,
        cache_bytes=1,
        exp_per_s=math.inf,
        copy_bytes=math.inf,
        pick_bytes=math.inf,
        step_s=0.0,
        disks={DISK: Disk(read_bytes_per_s=math.inf, cached_bytes_per_s=math.inf, write_bytes_per_s=math.inf)},
    )
