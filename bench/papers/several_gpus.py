"""Several GPUs of NGra's and NeuGraph's server, simulated: ``python -m bench.papers.several_gpus``. Prints Markdown tables.

One layer of a GCN, forward, whose input changes in every epoch, on the shapes of the papers' graphs: chunks have equally many edges, and rows of
all features are gathered, as the papers' systems do. A device has room for what a step needs and for the blocks of the next, and half as much
again. All devices are those of ``p100x8`` (NGra, Fig. 16; NeuGraph, Fig. 17). No epoch is run.

TF-SAGA is NeuGraph without its optimizations, here: a tensor of edges is written and read for each operator, every chunk loads whole intervals,
copies do not run beside steps, and every device loads for itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from bench.epochs.graphs import Shape
from bench.memory_policies import captured_for, sizes_for
from bench.pages import head, row
from sagann.machines import published_machine
from sagann.nn import ModelConfig
from sagann.plan.dealing import EACH, Route
from sagann.plan.epoch import Planned, plan_epoch
from sagann.plan.gradients import Gradients
from sagann.plan.intervals import PartIntervals, equal_vertices
from sagann.plan.routes import routes_of, seconds_of
from sagann.plan.schedule import Schedule
from sagann.plan.sizes import BlockSizes, needed_bytes
from sagann.plan.steps import Beside, Move
from sagann.plan.sweeps import Traversal
from sagann.plan.work import StepWork

SHAPES = {
    "enwiki": Shape(vertices=3_200_000, edges=222_100_000, features=300, classes=12),
    "reddit_full": Shape(vertices=2_200_000, edges=571_000_000, features=300, classes=50),
    "amazon": Shape(vertices=8_600_000, edges=231_600_000, features=96, classes=22),
}
"NGra, Table 1, and NeuGraph, Table 1."
NUM_INTERVALS = 48
"Two devices gain 2 (V + E) / (V + 2 E), where V are the bytes of rows that a layer loads and E those of edges, which are not shared."
TENSORS, TENSOR_BYTES = 3, 12 << 30
"Tensors of a chunk's edges that TF-SAGA holds, and the memory for them, of 16 GiB: with the least P that fits, as in NeuGraph, Sec. 3.1."
MACHINE = published_machine("p100x8")
WIDTH = 512
"Width of the layer's result: wider than any input, so that the input is gathered."
ROOM = 1.5
"Budget, as a multiple of what a step takes beside the blocks of the next."
ENGINES = Beside(copies_beside=True, has_engines=True)
SCALING = "dataset | devices | route | s | times one | GB from the host | GB from devices"
FIGURE_17 = "dataset | P | TF-SAGA s | one device | two, each | two, chain | two, TF-SAGA"


class Epoch(NamedTuple):
    """A simulated forward."""

    planned: Planned
    seconds: float

    @property
    def peer_bytes(self) -> int:
        """Bytes that come from other devices."""
        moves = (each for each in self.planned.plan.operations if isinstance(each, Move))
        return sum(each.num_bytes for each in moves if each.kind == "load" and each.peer)


def epoch_of(dataset: str, num_devices: int, route: Route = EACH, *, num_intervals: int = NUM_INTERVALS) -> Epoch:
    """A forward over devices."""
    shape = SHAPES[dataset]
    layer = ModelConfig(model="gcn", layers=1, hidden=WIDTH, dropout=0.0)
    program, hops = captured_for(shape._replace(classes=WIDTH), layer, x_is_constant=False)
    gradients = Gradients(program)
    part = PartIntervals.of_graph(equal_vertices(shape.vertices, num_intervals))
    sizes = sizes_for(program, hops, shape, num_intervals)
    alone = Schedule(BlockSizes(program, sizes, part, gradients))
    needed = needed_bytes(list(alone.forward()), alone.sizes.of, ahead=True)
    part = replace(part, devices=tuple(f"device{number}" for number in range(num_devices)))
    found = plan_epoch(
        program,
        sizes,
        part,
        int(ROOM * needed),
        gradients=gradients,
        trains=False,
        # One column on each device, as in the papers.
        traversal=Traversal(),
        beside=ENGINES,
        route=route,
    )
    return Epoch(found, seconds_of(found, MACHINE, StepWork(found.schedule)))


def routes(num_devices: int) -> Sequence[Route]:
    return routes_of(MACHINE, [f"device{number}" for number in range(num_devices)])


def tf_saga_s(dataset: str, num_devices: int, num_intervals: int) -> float:
    """Seconds of TF-SAGA: copies one after the other with steps, of which those below one switch share its rate."""
    found = epoch_of(dataset, 1, num_intervals=num_intervals).planned
    work = StepWork(found.schedule)
    row_bytes = SHAPES[dataset].features * 4
    steps_s = loads_s = 0.0
    for each in found.plan.operations:
        if isinstance(each, Move):
            loads_s += each.num_bytes / MACHINE.links["device0.copy_in"].bytes_per_s if each.kind != "drop" else 0.0
        elif each.kind != "return":
            steps_s += work.of(each).seconds(MACHINE)
            if each.kind == "gather":
                # Tensors of edges are written and read: by Scatter, ApplyEdge and Gather.
                num_edges = found.schedule.hops[0].edges[each.interval, each.dst_interval]
                steps_s += 4 * num_edges * row_bytes / MACHINE.stream_bytes
    return loads_s / -(-num_devices // 2) + steps_s / num_devices


def scaling(dataset: str) -> Iterator[list[str]]:
    one = epoch_of(dataset, 1).seconds
    for count in (1, 2, 4, 8):
        for route in routes(count):
            found = epoch_of(dataset, count, route)
            sizes = (found.planned.plan.loaded_bytes, found.peer_bytes)
            cells = [f"{found.seconds:.3g}", f"{one / found.seconds:.2f}", *(f"{each / 1e9:.1f}" for each in sizes)]
            yield [dataset, str(count), route.name, *cells]


def figure_17(dataset: str) -> list[float]:
    """P, seconds of TF-SAGA, and how much faster are NeuGraph on one device and on two, and TF-SAGA on two."""
    shape = SHAPES[dataset]
    count = math.ceil(math.sqrt(TENSORS * shape.edges * shape.features * 4 / TENSOR_BYTES))
    first = tf_saga_s(dataset, 1, count)
    rivals = [(1, EACH), *((2, route) for route in routes(2))]
    found = [epoch_of(dataset, *each, num_intervals=count).seconds for each in rivals]
    return [count, first, *(first / each for each in found), first / tf_saga_s(dataset, 2, count)]


def main() -> int:
    print(f"# Several GPUs, simulated\n\n`python -m bench.papers.several_gpus`; rates of {MACHINE.name}.\n")
    print(head(SCALING, words=("dataset", "route")))
    for dataset in SHAPES:
        for cells in scaling(dataset):
            print(row(cells), flush=True)
    print(f"\nTimes TF-SAGA on one device:\n\n{head(FIGURE_17, words=('dataset',))}")
    for dataset in SHAPES:
        print(row([dataset, *(f"{each:.3g}" for each in figure_17(dataset))]), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
