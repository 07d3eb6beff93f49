"""Several GPUs of NGra's and NeuGraph's server, simulated: ``python -m bench.papers.several_gpus``. Prints Markdown tables.

One layer of a GCN, forward, whose input changes in every epoch, on the shapes of the papers' graphs; rows of all features are gathered, as in
the papers. A device has 1.5 times the memory of a step and of the blocks of the next one. The machine is ``p100x8``. No epoch is run.

NGra's Fig. 16: chunks have equally many edges. NeuGraph's Figs. 15 and 17: the papers' graphs are not available, so edges and needed rows of
chunks are counted on an R-MAT graph with 1/:data:`SCALE` of the vertices and edges, in random and in METIS order, and scaled up.

TF-SAGA is NeuGraph without its optimizations: tensors of edges are written and read, copies and steps take turns, every chunk loads whole
intervals, and every device loads for itself. The rate of the tensors of edges is fitted to one figure of the paper (:func:`edge_byte_s`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

from bench.epochs.graphs import Shape, generate
from bench.memory_policies import captured_for, sizes_for
from bench.pages import head, row
from sagann.graph import Topology, relabel
from sagann.graph.graph import Graph
from sagann.machines import published_machine
from sagann.nn import ModelConfig
from sagann.partition import VertexOrder, vertex_order
from sagann.plan.dealing import EACH, Route
from sagann.plan.epoch import Planned, plan_epoch
from sagann.plan.gradients import Gradients
from sagann.plan.hops import PICKED_CSC, hop_size
from sagann.plan.intervals import PartIntervals, equal_vertices
from sagann.plan.routes import routes_of, seconds_of
from sagann.plan.schedule import Schedule
from sagann.plan.selection import ALWAYS, NEVER, Selection, needed_rows
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
SCALE = 100
ORDERS: tuple[VertexOrder, ...] = ("random", "metis")
TENSORS, TENSOR_BYTES = 3, 12 << 30
"Tensors of a chunk's edges that TF-SAGA holds, and the memory for them, of 16 GiB: with the least P that fits, as in NeuGraph, Sec. 3.1."
FITTED, KERNEL_GAIN = "reddit_full", 2.8
"NeuGraph, Sec. 5.2 and Fig. 15: with the kernels alone, an epoch of GCN is 2.8 times as fast as TF-SAGA's on this graph."
MACHINE = published_machine("p100x8")
COPY_BYTES = 2.7e10
"T_copy of NeuGraph, Sec. 3.2: 70% of the rate of a socket's memory (data sheet: 7.7e10), which reads and writes each byte."
COPY_IN = MACHINE.links["device0.copy_in"].bytes_per_s
RULE = Selection.by_rates(pick_bytes=COPY_BYTES, transfer_bytes=COPY_IN)
WIDTH = 512
"Width of the layer's result: wider than any input, so that the input is gathered."
ROOM = 1.5
"Budget, as a multiple of what a step takes beside the blocks of the next."
ENGINES = Beside(copies_beside=True, has_engines=True)
FORWARD = partial(plan_epoch, trains=False, traversal=Traversal(), beside=ENGINES)
"One column on each device, as in the papers."
SCALING = "dataset | devices | route | s | times one | GB from the host | GB from devices"
NOTE = f"""NeuGraph's Figs. 15 and 17, R-MAT graphs of 1/{SCALE} of the vertices and edges. *Rows needed*: of a source interval, by a chunk.
*Kernels*, *selection*: times as fast as the step before, without overlap. Devices: times TF-SAGA on one."""
FIGURES = "dataset | P | rows needed | TF-SAGA s | kernels | selection | one device | two, each | two, chain | two, TF-SAGA"


class Epoch(NamedTuple):
    """A simulated forward."""

    planned: Planned
    seconds: float

    @property
    def peer_bytes(self) -> int:
        """Bytes that come from other devices."""
        moves = (each for each in self.planned.plan.operations if isinstance(each, Move))
        return sum(each.num_bytes for each in moves if each.kind == "load" and each.peer)


def epoch_of(
    dataset: str,
    num_devices: int,
    route: Route = EACH,
    *,
    num_intervals: int = NUM_INTERVALS,
    order: VertexOrder | None = None,
    selection: Selection = NEVER,
) -> Epoch:
    """A forward pass over devices, on chunks with equally many edges or, given an order, on those of the generated graph."""
    shape = SHAPES[dataset]
    layer = ModelConfig(model="gcn", layers=1, hidden=WIDTH, dropout=0.0)
    program, hops = captured_for(shape._replace(classes=WIDTH), layer, x_is_constant=False)
    gradients = Gradients(program)
    part = PartIntervals.of_graph(equal_vertices(shape.vertices, num_intervals))
    sizes = sizes_for(program, hops, shape, num_intervals)
    if order is not None:
        measured = measured_chunks(dataset, order, num_intervals, selection)
        sizes = {number: replace(size, **measured) for number, size in sizes.items()}
    alone = Schedule(BlockSizes(program, sizes, part, gradients))
    needed = needed_bytes(list(alone.forward()), alone.sizes.of, ahead=True)
    part = replace(part, devices=tuple(f"device{number}" for number in range(num_devices)))
    budget_bytes = int(ROOM * needed)
    found = FORWARD(program, sizes, part, budget_bytes, gradients=gradients, selection=selection, route=route)
    return Epoch(found, seconds_of(found, MACHINE, StepWork(found.schedule)))


def routes(num_devices: int) -> Sequence[Route]:
    return routes_of(MACHINE, [f"device{number}" for number in range(num_devices)])


def scaling(dataset: str) -> Iterator[list[str]]:
    one = epoch_of(dataset, 1).seconds
    for count in (1, 2, 4, 8):
        for route in routes(count):
            found = epoch_of(dataset, count, route)
            sizes = (found.planned.plan.loaded_bytes, found.peer_bytes)
            cells = [f"{found.seconds:.3g}", f"{one / found.seconds:.2f}", *(f"{each / 1e9:.1f}" for each in sizes)]
            yield [dataset, str(count), route.name, *cells]


@cache
def drawn(dataset: str, order: VertexOrder) -> Topology:
    """The R-MAT graph of a shape, scaled down, in an order."""
    shape = SHAPES[dataset]
    given = generate(Shape(shape.vertices // SCALE, shape.edges // SCALE // 2 * 2, features=1, classes=1))
    graph = Graph(topology=Topology(indptr=given.indptr, indices=given.src, num_src=given.num_vertices))
    return relabel(graph, vertex_order(graph, order)).topology


def measured_chunks(
    dataset: str, order: VertexOrder, num_intervals: int, selection: Selection = NEVER
) -> dict[str, dict[Any, int]]:
    """Edges of each chunk, and rows that each needs where they are picked, scaled up."""
    topology = drawn(dataset, order)
    bounds = equal_vertices(topology.num_dst, num_intervals)
    found = {"edges": hop_size(topology, bounds).edges, "needed": needed_rows(topology, bounds, selection)}
    return {name: {at: SCALE * count for at, count in counts.items()} for name, counts in found.items()}


@cache
def least_intervals(dataset: str, order: VertexOrder) -> int:
    """The least P whose largest chunk fits TF-SAGA's memory for tensors of edges."""
    most = TENSOR_BYTES // (TENSORS * 4 * SHAPES[dataset].features)
    largest = (max(measured_chunks(dataset, order, count)["edges"].values()) for count in range(1, 256))
    return next(count for count, edges in enumerate(largest, 1) if edges <= most)


def serial(dataset: str, order: VertexOrder, selection: Selection = NEVER) -> tuple[float, float, float]:
    """Seconds of loads, picks and steps of an epoch on one device, which take turns."""
    epoch = epoch_of(dataset, 1, num_intervals=least_intervals(dataset, order), order=order, selection=selection)
    operations, work = epoch.planned.plan.operations, StepWork(epoch.planned.schedule)
    moves = [each for each in operations if isinstance(each, Move) and each.kind != "drop"]
    picked = sum(each.num_bytes for each in moves if each.block.needed_by is not None)
    steps = [each for each in operations if not isinstance(each, Move) and each.kind != "return"]
    loads_s = sum(each.num_bytes for each in moves) / COPY_IN
    return loads_s, picked / COPY_BYTES, sum(work.of(each).seconds(MACHINE) for each in steps)


@cache
def edge_byte_s(order: VertexOrder) -> float:
    """Seconds per byte that TF-SAGA takes for an edge tensor beyond the time of our kernels, fitted to :data:`KERNEL_GAIN`."""
    shape = SHAPES[FITTED]
    return (KERNEL_GAIN - 1) * sum(serial(FITTED, order)) / (4 * shape.features * shape.edges)


def figures(dataset: str, order: VertexOrder) -> list[float]:
    """P, the share of rows that chunks need, seconds of TF-SAGA, and the speed-ups of the columns of :data:`FIGURES`."""
    shape, count = SHAPES[dataset], least_intervals(dataset, order)
    whole, picked = serial(dataset, order), serial(dataset, order, RULE)
    edges_s = edge_byte_s(order) * 4 * shape.features * shape.edges
    epoch = partial(epoch_of, dataset, num_intervals=count, order=order, selection=RULE)
    found = [epoch(*each).seconds for each in [(1, EACH), *((2, route) for route in routes(2))]]
    # Devices below one switch share its rate.
    first, second = sum(whole) + edges_s, whole[0] + (whole[2] + edges_s) / 2
    every = measured_chunks(dataset, order, count, ALWAYS)["needed"]
    share = sum(rows for (form, *_), rows in every.items() if form == PICKED_CSC) / (count * shape.vertices)
    gains = first / sum(whole), sum(whole) / sum(picked), *(first / each for each in (*found, second))
    return [count, share, first, *gains]


def main() -> int:
    print(f"# Several GPUs, simulated\n\n`python -m bench.papers.several_gpus`; rates of {MACHINE.name}.\n")
    print(head(SCALING, words=("dataset", "route")))
    for dataset in SHAPES:
        for cells in scaling(dataset):
            print(row(cells), flush=True)
    print(f"\n{NOTE}")
    for order in ORDERS:
        fitted = f"Order: {order}. Fitted: {1e12 * edge_byte_s(order):.3g} ps per byte of a tensor of edges."
        print(f"\n{fitted}\n\n{head(FIGURES, words=('dataset',))}")
        every = {dataset: figures(dataset, order) for dataset in SHAPES}
        every["mean"] = [sum(each) / len(SHAPES) for each in zip(*every.values(), strict=True)]
        for name, found in every.items():
            print(row([name, *(f"{each:.3g}" for each in found)]), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
