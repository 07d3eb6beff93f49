"""ROC's experiments on its cluster by simulation, beside its paper: ``python -m bench.roc``.

Prints Markdown: throughput on 1 to 16 GPUs (figure 5), and partitioning policies in training (figure 8) and inference (figure 9).
:mod:`bench.memory_policies` compares memory policies (figure 10). Nothing is trained. Graphs are generated at a scale, and plans have the
sizes of the paper's Table 4.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import mean

from bench.memory_policies import SHAPES, spread
from bench.pages import command_line, head, parser_of, row
from bench.papers.rivals import place_uncached
from bench.roc.epochs import (
    DEVICE_BYTES,
    DROPOUT,
    HIDDEN,
    LEARNING_EPOCHS,
    MACHINE,
    Epoch,
    Job,
    equal_seconds,
    learned_costs,
    learned_ranges,
    simulated,
)
from bench.roc.graphs import MOST_EDGES, QUADRANTS, Generated
from bench.roc.joined import DEVICES_PER_NODE
from sagann.plan.dynamic_program import place_by_program
from sagann.plan.machine import Machine

MODELS = ("gcn", "gin", "commnet")
"Models of ROC, Sec. 7.1."
INFERRED_MODEL = "gin"
"Model of figure 9."
DEVICES = (1, 2, 4, 8, 16)
"Numbers of GPUs of figure 5; a node has four."
SCALING_COLUMNS = (
    f"dataset | model | epochs/s on 1 | {' | '.join(map(str, DEVICES[1:]))} | P on 1 | busiest on 1 | on 4 | on 16"
)
RIVAL_COLUMNS = "dataset | GPUs | P | epochs/s | as NeuGraph | times as fast"
PARTITION_COLUMNS = (
    "ids | GPUs (nodes) | vertices, epochs/s | edges, epochs/s | cost, epochs/s | cost / vertices | cost / edges"
)
LATENCY_COLUMNS = (
    "ids | GPUs (nodes) | vertices, ms | edges, ms | cost, ms | vertices / cost | edges / cost | "
    "slowest device computes, ms | busiest"
)
GIVEN = ("vertices", "edges")
"Policies of partitioning beside the learned cost."
TRAINED_GRAPHS, TEST_GRAPHS = 20, 4
"Numbers of graphs of ROC, Sec. 7.6: PPI has 24."


def main(given: Sequence[str] | None = None) -> int:
    arguments = _arguments(given)
    machine = Machine.from_toml(MACHINE.read_text(), where=str(MACHINE))
    print("# ROC's cluster by simulation\n")
    print(f"`{command_line('bench.roc', given)}`; rates of {machine.name}.\n")
    for section in (
        notes(arguments.datasets),
        scaling(machine, arguments.datasets),
        rivals(machine, arguments.datasets),
        partitioners(machine, arguments.partitioned),
        inference(machine, arguments.inferred),
    ):
        print("\n".join(section), end="\n\n", flush=True)
    return 0


def notes(datasets: Sequence[str]) -> Iterator[str]:
    """The rules of the simulation."""
    scales = ", ".join(f"{name} 1/{-(-SHAPES[name].edges // MOST_EDGES)}" for name in datasets)
    quadrants = ", ".join(f"{each:g}" for each in (QUADRANTS.a, QUADRANTS.b, QUADRANTS.c, QUADRANTS.d))
    yield (
        f"- Two layers of width {HIDDEN}, dropout {DROPOUT}, which the paper does not state. {DEVICE_BYTES >> 30} GiB of each device hold blocks. Each worker has "
        "the fewest intervals, P, that fit."
    )
    yield (
        f"- Shapes of Table 4. R-MAT graphs with quadrants {quadrants} and at most {MOST_EDGES:,} edges are generated ({scales} of the shape). "
        "Their counts of rows and edges are multiplied, so plans have the bytes of the whole shape."
    )
    yield (
        "- Each worker's part is planned as a run with `--workers` and `--memory` plans it. What an exchange moves becomes sends and receives from device to device, which run beside "
        "steps; gradients of parameters are summed by a ring. `verify` accepts every plan."
    )
    yield "- Features and edges lie in the host's memory when an epoch begins, as in the paper, and are loaded in each."


def scaling(machine: Machine, datasets: Sequence[str]) -> Iterator[str]:
    """Throughput by the number of devices."""
    yield "## 1 to 16 GPUs (figure 5)\n"
    yield "Times as fast as one GPU, with parts of equal edges. Busiest is a kind of resource, and the share of the epoch in which one of its kind is busy.\n"
    yield head(SCALING_COLUMNS, words=("model",))
    for name in datasets:
        graph = Generated.of(SHAPES[name])
        for model in MODELS:
            job = Job(shape=SHAPES[name], model=model)
            found = {count: simulated(job, machine, graph, graph.ranges(count)) for count in DEVICES}
            first = found[1]
            times = [f"{first.seconds / found[count].seconds:.2f}" for count in DEVICES[1:]]
            busiest = [found[count].busiest for count in (1, 4, 16)]
            yield row([name, model, f"{1 / first.seconds:.3g}", *times, str(first.num_intervals), *busiest])


def rivals(machine: Machine, datasets: Sequence[str]) -> Iterator[str]:
    """ROC's way against NeuGraph's on one node."""
    yield "### Against NeuGraph's way\n"
    yield (
        "GCN on one node without NVLink, as in Sec. 7.3: devices send over PCIe. NeuGraph's way is equal vertices and no block kept; ROC's is parts by learned cost and "
        "the dynamic program. The paper states up to 4 times.\n"
    )
    assert machine.host_to_device_bytes is not None
    slow = replace(
        machine,
        links={
            name: replace(link, bytes_per_s=machine.host_to_device_bytes) if name.startswith("link") else link
            for name, link in machine.links.items()
        },
    )
    rows, times = [head(RIVAL_COLUMNS)], list[float]()
    for name in datasets:
        graph, job = Generated.of(SHAPES[name]), Job(shape=SHAPES[name], model=MODELS[0])
        for count in DEVICES[:3]:
            roc = simulated(job, slow, graph, learned_ranges(job, slow, graph, count), placement=place_by_program)
            ranges = graph.ranges(count, by="vertices")
            other = simulated(job, slow, graph, ranges, placement=place_uncached)
            speeds = [f"{1 / each.seconds:.3g}" for each in (roc, other)]
            times.append(other.seconds / roc.seconds)
            rows.append(row([name, str(count), str(roc.num_intervals), *speeds, f"{times[-1]:.2f}"]))
    yield f"- Here {spread(times)}.\n"
    yield from rows


def partitioners(machine: Machine, dataset: str) -> Iterator[str]:
    """Throughput by policy of partitioning."""
    yield "## Partitioners (figure 8)\n"
    yield (
        f"GCN on {dataset}. The cost model learns from {LEARNING_EPOCHS} simulated epochs, which begin with equal edges. The paper states up to 1.4 times equal "
        "vertices (Sec. 7.3), and no figure against equal edges.\n"
    )
    rows, times = [head(PARTITION_COLUMNS, words=("GPUs (nodes)",))], list[float]()
    job = Job(shape=SHAPES[dataset], model=MODELS[0])
    for ids, hubs_first in (("random", False), ("by degree", True)):
        graph = Generated.of(SHAPES[dataset], hubs_first=hubs_first)
        for count in DEVICES[2:]:
            parts = {by: graph.ranges(count, by=by) for by in GIVEN}
            parts["cost"] = learned_ranges(job, machine, graph, count)
            found = {policy: simulated(job, machine, graph, ranges).seconds for policy, ranges in parts.items()}
            times.append(found["vertices"] / found["cost"])
            cells = [ids, f"{count} ({count // DEVICES_PER_NODE})", *(f"{1 / each:.3g}" for each in found.values())]
            rows.append(row([*cells, f"{times[-1]:.2f}", f"{found['edges'] / found['cost']:.2f}"]))
    yield f"- Here `cost` is {spread(times)} times as fast as equal vertices.\n"
    yield from rows


def inference(machine: Machine, dataset: str) -> Iterator[str]:
    """Latency of inference on graphs that were not trained on, by policy of partitioning."""
    whole, model = SHAPES[dataset], INFERRED_MODEL
    count = TRAINED_GRAPHS + TEST_GRAPHS
    shape = whole._replace(vertices=whole.vertices // count, edges=whole.edges // count)
    trained_shape = shape._replace(vertices=TRAINED_GRAPHS * shape.vertices, edges=TRAINED_GRAPHS * shape.edges)
    training = Job(shape=trained_shape, model=model)
    using = Job(shape=shape, model=model, trains=False)
    yield "## Inference on new graphs (figure 9)\n"
    yield (
        f"{model.upper()} on {dataset}: {TRAINED_GRAPHS} graphs are trained on, and the milliseconds are the mean of a forward pass on each of {TEST_GRAPHS} others. Each graph has a "
        f"{count}th of the shape: {shape.vertices:,} vertices and {shape.edges:,} edges. The paper states up to 1.2 times less time by learned parts.\n"
    )
    rows, times = [head(LATENCY_COLUMNS, words=("GPUs (nodes)",))], list[float]()
    for ids, hubs_first in (("random", False), ("by degree", True)):
        graphs = [Generated.of(shape, hubs_first=hubs_first, seed=seed) for seed in range(count)]
        trained = Generated.side_by_side(graphs[:TRAINED_GRAPHS])
        for devices in DEVICES[1:]:
            learned = learned_costs(training, machine, trained, devices)[1]
            found: dict[str, list[Epoch]] = {}
            for graph in graphs[TRAINED_GRAPHS:]:
                parts = {by: graph.ranges(devices, by=by) for by in GIVEN}
                parts["cost"] = equal_seconds(learned, using, graph, devices)
                for policy, ranges in parts.items():
                    found.setdefault(policy, []).append(simulated(using, machine, graph, ranges))
            seconds = {name: mean(each.seconds for each in passes) for name, passes in found.items()}
            times.append(seconds["vertices"] / seconds["cost"])
            cells = [ids, f"{devices} ({-(-devices // DEVICES_PER_NODE)})"]
            cells += [f"{1e3 * each:.3g}" for each in seconds.values()]
            cells += [f"{times[-1]:.2f}", f"{seconds['edges'] / seconds['cost']:.2f}"]
            computes = ", ".join(f"{1e3 * passes[0].busy_s['compute']:.3g}" for passes in found.values())
            rows.append(row([*cells, computes, found["cost"][0].busiest]))
    yield f"- Here equal vertices take {spread(times)} times as long as `cost`.\n"
    yield from rows


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    return parser_of(
        __doc__,
        {},
        datasets=(list(SHAPES), "shapes of figure 5", SHAPES),
        partitioned=("reddit", "shape of figure 8", SHAPES),
        inferred=("ppi", "shape of figure 9", SHAPES),
    ).parse_args(given)


if __name__ == "__main__":
    raise SystemExit(main())
