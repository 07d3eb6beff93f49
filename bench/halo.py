"""How many rows workers send each other, by the order of the vertices: ``python -m bench.halo --data demo GRAPH.npz``.

Parts are contiguous ranges of equal edges, as workers have them. The halo is what all workers together receive of other workers' rows
when a layer's edges read them; backward as much goes back. "MB" is the halo at so many columns of 4 bytes; "of its vertices" divides it by
the number of vertices of the graph. METIS orders by 128 parts, whatever the number of workers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.result_tables import table_line
from sagann.graph import Graph, Topology, relabel
from sagann.partition import VERTEX_ORDERS, part_of, vertex_order, vertex_ranges
from sagann.storage import load_graph
from sagann.storage.load import EMBEDDED, embedded_graph

AS_STORED = "as stored"
ORDERS = (AS_STORED, *(name for name in ("random", "degree", "metis") if name in VERTEX_ORDERS))
WORKERS = (2, 4)
COLUMNS = (
    "graph",
    "order",
    *(text for count in WORKERS for text in (f"{count} workers, MB", "of its vertices")),
)


def main(given: Sequence[str] | None = None) -> None:
    """Print a row for every graph and order."""
    options = _arguments(given)
    print(" ".join(["`python -m bench.halo", *(sys.argv[1:] if given is None else given)]) + "`\n")
    print(table_line(COLUMNS))
    print(table_line(["---"] * 2 + ["--:"] * (len(COLUMNS) - 2)), flush=True)
    for source in options.data:
        graph = embedded_graph(source) if source in EMBEDDED else load_graph(source)
        for row in rows_of(graph, Path(source).stem, options.width):
            print(table_line(row), flush=True)


def rows_of(graph: Graph, name: str, width: int) -> Iterator[list[str]]:
    """The rows of a graph."""
    plain = Graph(topology=graph.topology)
    for order in ORDERS:
        ordered = plain if order == AS_STORED else relabel(plain, vertex_order(plain, order))
        cells = []
        for count in WORKERS:
            rows = halo_rows(ordered.topology, count)
            cells += [f"{4e-6 * width * rows:.3g}", f"{rows / graph.num_vertices:.0%}"]
        yield [name, order, *cells]


def halo_rows(topology: Topology, num_workers: int) -> int:
    """Rows that all workers together receive when a layer's edges read the rows of their sources."""
    bounds = vertex_ranges(topology.indptr, num_workers)
    return sum(len(part_of(topology, bounds, rank).halo) for rank in range(num_workers))


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["demo"], metavar="PATH|NAME", help="graphs")
    parser.add_argument("--width", type=int, default=64, help="columns of the rows that travel")
    return parser.parse_args(given)


if __name__ == "__main__":
    main()
