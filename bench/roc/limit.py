"""1 to 1024 workers on a graph of 10 billion edges: how long each resource is busy, from the plan of one worker.

Workers have about equally many vertices and edges, so the plan of one of them tells what each resource has to do. No epoch is simulated: an
epoch takes at least as long as the busiest resource. Rows of the halo do not fit a device while they travel, so they go through the host's
memory, as in a run: a block that is sent is stored before, and a block that came is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bench.memory_policies import Shape
from bench.result_tables import table_line
from bench.roc.epochs import DEVICES_PER_NODE, Job, fewest_intervals, planned, route
from bench.roc.graphs import Cut, Generated, Share
from sagann.partition import part_of, vertex_ranges
from sagann.plan.epoch import Planned
from sagann.plan.exchanges import Exchanges
from sagann.plan.machine import Machine
from sagann.plan.steps import Step
from sagann.plan.work import StepWork

SHAPE = Shape(vertices=400_000_000, edges=10_000_000_000, features=128, classes=32)
"A graph of 10 billion edges."
COUNTS = tuple(1 << power for power in range(11))
"Numbers of workers."
LEAST_GAIN = 1.05
"Times as fast that doubling the workers has to be at least, or scaling has stopped."
COLUMNS = (
    "workers",
    "P",
    "halo, times own rows",
    "compute s",
    "launches s",
    "PCIe s",
    "network s",
    "once per node s",
    "epoch s, at least",
    "times one worker",
    "busiest",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """What the resources of one worker have to do in an epoch."""

    workers: int
    "Number of workers."
    num_intervals: int
    "Number of intervals of a worker, P."
    halo: float
    "Rows that other workers own, over own rows."
    launches_s: float
    "Seconds of computing in which nothing is computed, because steps begin."
    once_per_node_s: float
    "Seconds in which a node's network would be busy if a row travelled once to a node, not to each device that needs it."
    seconds: Mapping[str, float]
    "Seconds in which each resource is busy."

    @property
    def epoch_s(self) -> float:
        """Seconds of the busiest resource."""
        return max(self.seconds.values())

    @property
    def busiest(self) -> str:
        """The resource that is busy longest."""
        return max(self.seconds, key=lambda name: self.seconds[name])


def loads_of(job: Job, machine: Machine, graph: Generated, counts: Sequence[int] = COUNTS) -> list[Load]:
    """The loads for numbers of workers."""
    return [load_of(job, machine, graph, workers) for workers in counts]


def load_of(job: Job, machine: Machine, graph: Generated, workers: int) -> Load:
    """Plan the worker in the middle, and count."""
    ranges = vertex_ranges(graph.topology.indptr, workers)

    def in_the_middle(num_intervals: int) -> tuple[Planned, Share]:
        part = Cut.of(graph, ranges, num_intervals).part(workers // 2)
        return planned(job, part), part

    (found, part), num_intervals = fewest_intervals(in_the_middle)
    work = StepWork(found.schedule)
    steps = [each for each in found.plan.operations if isinstance(each, Step) and each.exchanged is None]
    assert machine.host_to_device_bytes is not None
    assert machine.device_to_host_bytes is not None
    seconds = {
        "compute": sum(work.of(each).seconds(machine) for each in steps),
        "PCIe": max(
            found.plan.loaded_bytes / machine.host_to_device_bytes,
            found.plan.stored_bytes / machine.device_to_host_bytes,
        ),
    }
    # Rows travel once forward, and their gradients once back.
    names = Exchanges.of(job.program, job.gradients).first
    row_bytes = 2 * sum(found.schedule.sizes.row_bytes(name) for name in names)
    rate = machine.links[route(0, DEVICES_PER_NODE)].bytes_per_s
    several, once = (row_bytes * rows / rate for rows in _rows_between_nodes(graph, ranges, workers // 2))
    own = part.intervals.num_vertices
    return Load(
        workers=workers,
        num_intervals=num_intervals,
        halo=(part.intervals.bounds[-1] - own) / own,
        launches_s=len(steps) * machine.step_s,
        once_per_node_s=once,
        seconds={**seconds, "network": several},
    )


def _rows_between_nodes(graph: Generated, ranges: Sequence[int], rank: int) -> tuple[int, int]:
    """Rows that the node of a device needs of other nodes: the sum of what its devices need, and each row once."""
    nodes = (*ranges[:-1:DEVICES_PER_NODE], ranges[-1])
    if len(nodes) == 2:
        return 0, 0
    node = rank // DEVICES_PER_NODE
    several = 0
    for each in range(node * DEVICES_PER_NODE, (node + 1) * DEVICES_PER_NODE):
        halo = part_of(graph.topology, ranges, each).halo
        several += int(((halo < nodes[node]) | (halo >= nodes[node + 1])).sum())
    return graph.scale * several, graph.scale * len(part_of(graph.topology, nodes, node).halo)


def halo_of(graph: Generated, workers: int) -> float:
    """Rows that the worker in the middle needs of others, over own rows."""
    part = part_of(graph.topology, vertex_ranges(graph.topology.indptr, workers), workers // 2)
    return len(part.halo) / part.num_own


def lines(found: Sequence[Load]) -> Iterator[str]:
    """The table, and where scaling stops."""
    yield table_line(COLUMNS)
    yield table_line(["--:"] * (len(COLUMNS) - 1) + ["---"])
    for each in found:
        yield table_line(
            [
                f"{each.workers:,}",
                str(each.num_intervals),
                f"{each.halo:.2f}",
                f"{each.seconds['compute']:.3g}",
                f"{each.launches_s:.2g}",
                *(f"{each.seconds[name]:.3g}" for name in ("PCIe", "network")),
                f"{each.once_per_node_s:.3g}",
                f"{each.epoch_s:.3g}",
                f"{found[0].epoch_s / each.epoch_s:.3g}",
                each.busiest,
            ]
        )


def stop_of(found: Sequence[Load]) -> Load:
    """The last load beyond which doubling the workers hardly helps."""
    for each, twice in pairwise(found):
        if each.epoch_s < LEAST_GAIN * twice.epoch_s:
            return each
    return found[-1]
