"""1 to 1,024 machines on a graph of 10 billion edges, on paper: ``python -m bench.papers.machines``. Prints a page.

Nothing is trained: seconds come from the equations of HyScale-GNN (:mod:`sagann.hybrid.forecast`) for each machine's processor, from expected
mini-batches (:mod:`bench.hyscale.batches`), and from bytes and messages between machines as :mod:`sagann.runtime.workers` exchanges them. Vertices
are dealt without regard to edges, so that 1 - 1/W of all ends are elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from bench.hyscale.batches import DegreeLaw, expected_counts, log_normal_law
from bench.pages import command_line, head, parser_of, row
from sagann.hybrid.assignment import HOST, Assignment, Threads
from sagann.hybrid.forecast import VALUE_BYTES, BatchCounts, Job, Widths
from sagann.machines import published_machine

VERTICES, EDGES = 500_000_000, 10_000_000_000
WIDTHS = Widths(features=(128, 256, 172), concatenates=True)
FANOUTS = (25, 10)
MACHINE = "epyc-7763-a5000"
NETWORK = 1.1e10
"Bytes per second of a machine's link."
MESSAGE_S = 1e-5
"Seconds that a message costs its sender: assumption."
TOP_SHARE = 0.32
"Part of all edges that the hundredth of the vertices with the most edges has: that of ogbn-papers100M."
ID_BYTES = 8
GAIN = 1.2
"Scaling stops where twice as many machines are less than this many times as fast."
EDGES_PER_S = 4e6
"Edges that one thread samples per second: assumption."
MACHINES = [1 << power for power in range(11)]

Seconds = Mapping[str, float]
"Seconds by the resource that they occupy."


def main(given: Sequence[str] | None = None) -> int:
    batch_sizes = ([8192, 131_072], "seeds of a step of all machines")
    options = parser_of(__doc__, {}, batch_sizes=batch_sizes).parse_args(given)
    law = log_normal_law(num_vertices=VERTICES, mean=EDGES / VERTICES, top_share=TOP_SHARE, symmetric=False)
    print(
        f"# One graph on 1 to {MACHINES[-1]:,} machines, on paper\n\n`{command_line('bench.papers.machines', given)}`\n\n"
        f"By simulation: {VERTICES:,} vertices, {EDGES:,} edges, {WIDTHS.features[0]} features; sage of two layers, hidden {WIDTHS.features[1]}. "
        f"Processors of `{MACHINE}`, links of {8 * NETWORK / 1e9:g} Gb/s; a message takes {1e6 * MESSAGE_S:g} us of "
        f"its sender. Scaling stops where twice as many machines are less than {GAIN} times as fast.\n"
    )
    job = Job(
        machine=published_machine(MACHINE),
        counts=lambda seeds: expected_counts(law, FANOUTS, seeds),
        num_train=VERTICES // 100,
        widths=WIDTHS,
        sampled_edges_per_s=EDGES_PER_S,
    )
    for batch_size in options.batch_sizes:
        title = f"Sampled, fanouts 25, 10, {batch_size:,} seeds a step of all machines; stages overlap, so the longest one counts"
        times = [sampled(job, batch_size, size) for size in MACHINES if size <= batch_size]
        print("\n".join(table(title, times, "ms / step", 1e3, max)), end="\n\n")
    title = "The whole graph in each step; layers wait for what is exchanged, so seconds add up"
    times = [whole(law, job, size) for size in MACHINES]
    print("\n".join(table(title, times, "s / epoch", 1.0, sum)))
    return 0


def sampled(job: Job, batch_size: int, size: int) -> Seconds:
    """Seconds of a step of sampled training, by resource, of one of ``size`` machines."""
    cores, seeds = job.machine.num_cores, max(1, batch_size // size)
    threads = Threads(sample=cores // 4, load=cores // 8, train=cores - cores // 4 - cores // 8)
    times = job.times(Assignment(seeds={HOST: seeds}, threads=threads))
    counts: BatchCounts = job.counts(seeds)
    # Ids that are asked for, sources and ids of picked edges, rows.
    asked = sum(counts.vertices) - counts.vertices[-1]
    num_bytes = asked * ID_BYTES + counts.num_edges * 2 * ID_BYTES
    num_bytes += counts.vertices[0] * job.widths.features[0] * VALUE_BYTES
    rest = 1 - 1 / size
    # Two messages to each other machine for a hop, for rows, and for gradients.
    messages = 2 * (len(FANOUTS) + 2) * (size - 1)
    return {
        "sampling": times.sample,
        "loading": times.load,
        "training": times.train[HOST],
        "bytes of the network": (num_bytes + 2 * job.widths.model_bytes) * rest / NETWORK,
        "messages": messages * MESSAGE_S,
    }


def whole(law: DegreeLaw, job: Job, size: int) -> Seconds:
    """Seconds of an epoch on the whole graph, by resource, of one of ``size`` machines."""
    total, share, _, out_degree = law
    num_edges = total * law.mean_out_degree / size
    # Distinct sources of so many edges; all but the own part are elsewhere.
    sources = total * float(share @ -np.expm1(-num_edges * out_degree / (total * law.mean_out_degree)))
    counts = BatchCounts(vertices=(total / size,) * 3, edges=(num_edges,) * 2)
    halo = sources * (1 - 1 / size)
    # Constant features travel once, before the first epoch; each layer behind sends rows, and gets their gradients.
    widths = list(pairwise(job.widths.features))[1:]
    num_bytes = sum(2 * min(before, after) * VALUE_BYTES for before, after in widths) * halo
    messages = (2 * len(widths) + 2) * (size - 1)
    return {
        "computing": job.propagation_s(counts, HOST, job.machine.num_cores),
        "bytes of the network": (num_bytes + 2 * job.widths.model_bytes * (1 - 1 / size)) / NETWORK,
        "messages": messages * MESSAGE_S,
    }


def table(
    title: str, times: Sequence[Seconds], unit: str, scale: float, joined: Callable[[Iterator[float]], float]
) -> Iterator[str]:
    """A table of a kind of training: a row for each number of machines, and where it stops to scale."""
    seconds = [joined(iter(each.values())) for each in times]
    yield f"{title}:\n"
    yield head(["machines", unit, "times as fast", *times[0], "busiest"], words=["busiest"])
    for size, each, total in zip(MACHINES, times, seconds, strict=False):
        parts = (f"{scale * part:.3g}" for part in each.values())
        busiest = max(each, key=each.__getitem__)
        yield row([size, f"{scale * total:.3g}", f"{seconds[0] / total:.1f}", *parts, busiest])
    stop = next((at for at, (one, two) in enumerate(pairwise(seconds)) if one < GAIN * two), None)
    if stop is None:
        yield f"\nIt scales to {MACHINES[len(times) - 1]:,} machines."
    else:
        busiest = max(times[stop + 1], key=times[stop + 1].__getitem__)
        yield f"\nIt stops to scale at {MACHINES[stop]:,} machines: {busiest}."


if __name__ == "__main__":
    raise SystemExit(main())
