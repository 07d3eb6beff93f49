"""How fast a dataset on disk is put into another order, and in how much memory: ``python -m bench.reordering --work FOLDER``.

Each graph is R-MAT with 16 features, the order is that of a score. A row has the medians of three runs. "per core-s" divides the edges by the
processor time used, which other work on the machine does not change much. "memory" is what the process holds of its own above
what it held before, its largest value; pages of mapped files are not in it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import torch

from bench.cold_bytes.sampled_epochs import vertices_and_edges
from bench.origin import commit
from bench.result_tables import table_line
from sagann.graph import Graph, Topology, rmat_edges
from sagann.runtime.processor import processor_name
from sagann.storage import load_graph, save_graph
from sagann.storage.reorder import save_reordered
from sagann.tiering import hottest, out_degree

NUM_FEATURES, RUNS = 16, 3
MIB = 1 << 20


def main() -> None:
    """Print a row for every graph."""
    options = _options()
    torch.set_num_threads(options.threads)
    print(f"`python -m bench.reordering {' '.join(sys.argv[1:])}` at {commit()}; {processor_name()}.\n")
    print("| vertices | edges | dataset, MiB | seconds | M edges / s | M edges / core-s | memory, MiB |")
    print("|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    for num_vertices, num_edges in options.graphs:
        print(table_line(row_of(num_vertices, num_edges, options.work)), flush=True)


def row_of(num_vertices: int, num_edges: int, work: Path | None) -> list[str]:
    """The row of the table for a graph."""
    with tempfile.TemporaryDirectory(prefix="sagann_reordering_", dir=work) as name:
        source, target = Path(name) / "source", Path(name) / "target"
        save_graph(_generated(num_vertices, num_edges), source)
        graph = load_graph(source)
        order = hottest(out_degree(graph.topology))
        num_bytes = sum(file.stat().st_size for file in source.rglob("*") if file.is_file())
        seconds, core_seconds, held = [], [], []
        # The first run compiles.
        for _ in range(1 + RUNS):
            shutil.rmtree(target, ignore_errors=True)
            with _most_memory() as most:
                began_s, began_core_s = time.perf_counter(), time.process_time()
                save_reordered(graph, order, target)
                seconds.append(time.perf_counter() - began_s)
                core_seconds.append(time.process_time() - began_core_s)
            held.append(most[0])
        assert torch.equal(load_graph(target).topology.in_degrees(), graph.topology.in_degrees()[order])
    return [
        f"{num_vertices:,}",
        f"{num_edges:,}",
        f"{num_bytes / MIB:,.0f}",
        f"{median(seconds[1:]):.2f}",
        f"{num_edges / median(seconds[1:]) / 1e6:.1f}",
        f"{num_edges / median(core_seconds[1:]) / 1e6:.1f}",
        f"{median(held[1:]) / MIB:,.0f}",
    ]


def _generated(num_vertices: int, num_edges: int) -> Graph:
    src, dst = rmat_edges(num_vertices, num_edges, seed=0)
    topology = Topology.from_coo(src=src, dst=dst, num_src=num_vertices)
    return Graph(topology=topology, features=torch.rand(num_vertices, NUM_FEATURES))


@contextmanager
def _most_memory() -> Iterator[list[int]]:
    """Bytes that the process holds of its own, above what it holds now: the largest of samples every few milliseconds."""
    before, most, done = _own_bytes(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            most[0] = max(most[0], _own_bytes() - before)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield most
    finally:
        done.set()
        thread.join()


def _own_bytes() -> int:
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--graphs",
        type=vertices_and_edges,
        nargs="+",
        default=[(1_000_000, 20_000_000), (5_000_000, 100_000_000)],
        help="vertices,edges",
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--work", type=Path, help="folder for the datasets, deleted after use")
    return parser.parse_args()


if __name__ == "__main__":
    main()
