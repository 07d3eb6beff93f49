"""How fast edges become a Topology: the parallel counting sort against the sorts a user would pick instead.

    python -m bench.build_csc [--edges 100e6] [--reference-edges 10e6] [--repeats 3]

Prints one table. Ids are int64, as PyG and DGL hold them; each row is the median of the repeats, and includes
everything from a list of edges to a usable topology: the check that ids are in range, and in-edges that ascend by
source, which the sorts beside it do not order. "per core" divides the rate by the number of cores; "per core-s"
divides the edges by the processor time used, which other work on the machine does not change much.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numba
import numpy as np
import torch
from torch import Tensor

from sagann.graph import Topology
from sagann.graph.rmat import rmat_edges

EDGES_PER_VERTEX = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edges", type=float, default=100e6, help="edges to sort; default 100e6")
    parser.add_argument(
        "--reference-edges", type=float, default=10e6, help="edges for the slower sorts; default 10e6"
    )
    parser.add_argument("--repeats", type=int, default=3, help="runs of which the median counts; default 3")
    args = parser.parse_args()
    cores = numba.get_num_threads()
    print(
        f"{EDGES_PER_VERTEX} edges per vertex, {cores} cores for sagann, {torch.get_num_threads()} for torch, 1 for numpy"
    )
    print(
        f"{'edges':>12} {'distribution':<12} {'build':<36} {'seconds':>8} {'M edges/s':>10} {'per core':>9} {'per core-s':>10}"
    )
    for num_edges, reference in ((int(args.reference_edges), True), (int(args.edges), False)):
        for distribution in ("uniform", "power-law"):
            measure(num_edges, distribution, reference=reference, repeats=args.repeats)


def measure(num_edges: int, distribution: str, *, reference: bool, repeats: int) -> None:
    num_vertices = max(1, num_edges // EDGES_PER_VERTEX)
    src, dst = make_edges(num_vertices, num_edges, distribution)
    weight = torch.ones(num_edges)
    topology = Topology.from_coo(src=src, dst=dst, num_src=num_vertices)
    cores = numba.get_num_threads()
    builds: dict[str, tuple[int, Callable[[], object]]] = {
        "sagann Topology.from_coo": (cores, lambda: Topology.from_coo(src=src, dst=dst, num_src=num_vertices)),
        "sagann from_coo with a weight": (
            cores,
            lambda: Topology.from_coo(src=src, dst=dst, num_src=num_vertices, edge_data={"weight": weight}),
        ),
        "sagann Topology.csr": (cores, lambda: topology.with_edge_data().csr()),
    }
    if reference:
        builds["torch.sort(stable=True)"] = (torch.get_num_threads(), lambda: torch_build(src, dst, num_vertices))
        builds["numpy argsort(kind='stable')"] = (1, lambda: numpy_build(src.numpy(), dst.numpy(), num_vertices))
    for name, (build_cores, build) in builds.items():
        seconds, core_seconds = median_seconds(build, repeats)
        rate = num_edges / seconds / 1e6
        print(
            f"{num_edges:>12,} {distribution:<12} {name:<36} {seconds:>8.3f} {rate:>10.1f} {rate / build_cores:>9.1f} {num_edges / core_seconds / 1e6:>10.1f}",
            flush=True,
        )


def make_edges(num_vertices: int, num_edges: int, distribution: str) -> tuple[Tensor, Tensor]:
    if distribution == "power-law":
        src, dst = rmat_edges(num_vertices, num_edges, seed=0)
        return src.long(), dst.long()
    generator = torch.Generator().manual_seed(0)
    src, dst = (torch.randint(0, num_vertices, (num_edges,), generator=generator) for _ in range(2))
    return src, dst


def torch_build(src: Tensor, dst: Tensor, num_vertices: int) -> tuple[Tensor, Tensor]:
    order = torch.sort(dst, stable=True).indices
    indptr = torch.zeros(num_vertices + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(dst, minlength=num_vertices), 0, out=indptr[1:])
    return indptr, src[order]


def numpy_build(src: np.ndarray, dst: np.ndarray, num_vertices: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(dst, kind="stable")
    indptr = np.zeros(num_vertices + 1, dtype=np.int64)
    np.cumsum(np.bincount(dst, minlength=num_vertices), out=indptr[1:])
    return indptr, src[order]


def median_seconds(build: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Median seconds of the clock, and of the cores."""
    build()
    times, core_times = [], []
    for _ in range(repeats):
        start, core_start = time.perf_counter(), time.process_time()
        build()
        times.append(time.perf_counter() - start)
        core_times.append(time.process_time() - core_start)
    return statistics.median(times), statistics.median(core_times)


if __name__ == "__main__":
    main()
