"""Bytes that sampled epochs read from the cold tier, by cache: ``python -m bench.cold_bytes --data FOLDER``. Prints a Markdown table.

No row is read: the caches decide for the batches that the sampler gives, and rows that are not resident are counted. All caches have the
same slots and begin with the vertices of highest out-degree, which are read once before the first epoch and not counted.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from bench.epochs.__main__ import commit
from sagann.errors import DatasetError
from sagann.graph import Topology, rmat_edges
from sagann.sampling import NeighborSampler, seed_batches
from sagann.storage import load_graph
from sagann.tiering import CACHES, AnnouncingCache, Cache

ROW_BYTES = 512
"Bytes of a row: 128 features of float32."
BATCHES_PER_EPOCH, LARGEST_BATCH = 16, 1024
"A small graph has so many batches in an epoch; a large one has more, of the largest size."
Batches = Sequence[np.ndarray]


def main() -> None:
    """Print a row for every graph."""
    options = _options()
    torch.set_num_threads(1)
    windows = [f"look-ahead, {window} batches" for window in options.windows]
    columns = ["graph", "batches", "no tiering, MiB", "static", "s3-fifo", *windows, "optimum", "fewest"]
    print(f"`python -m bench.cold_bytes {' '.join(sys.argv[1:])}` at {commit()}.\n")
    print(f"{options.hot:.0%} of the rows are hot; {options.epochs} epochs; fanouts {options.fanouts}.")
    print(
        f'Rows of {ROW_BYTES} bytes. "x% less" is relative to no tiering; "optimum" looks ahead over all epochs.\n'
    )
    print(f"| {' | '.join(columns)} |")
    print("|---" + "|--:" * (len(columns) - 1) + "|", flush=True)
    for name, topology, share in _graphs(options):
        print("|", " | ".join(row_of(name, topology, share, options)), "|", flush=True)


def row_of(name: str, topology: Topology, share: float, options: argparse.Namespace) -> list[str]:
    """The row of the table for a graph, a share of whose vertices are seeds."""
    batches = list(_batches(topology, share, options))
    hottest = torch.bincount(topology.indices, minlength=topology.num_src).argsort(descending=True, stable=True)
    num_slots = int(options.hot * topology.num_src)

    def cold_rows(cache: str, window: int) -> int:
        made = CACHES[cache](topology.num_src, num_slots, hottest.numpy())
        began_s = time.perf_counter()
        count = num_cold_rows(made, batches, window)
        if options.speed:
            rate = sum(map(len, batches)) / (time.perf_counter() - began_s)
            print(f"{name}, {cache}, window {window}: {rate / 1e6:.1f} million ids / s", file=sys.stderr)
        return count

    num_rows = sum(map(len, batches))
    others = [cold_rows("static", 1), cold_rows("s3-fifo", 1)]
    ahead = [cold_rows("look-ahead", window) for window in options.windows]
    optimum = cold_rows("look-ahead", len(batches))
    shares = [f"{1 - count / num_rows:.1%} less" for count in (*others, *ahead, optimum)]
    fewest = "look-ahead" if max(ahead) <= min(others) else "**not look-ahead**"
    return [name, str(len(batches)), f"{num_rows * ROW_BYTES / 2**20:,.1f}", *shares, fewest]


def num_cold_rows(cache: Cache, batches: Batches, window: int) -> int:
    """Number of rows that are not resident when their batch is read; ``window`` batches are announced, that one among them."""
    if not isinstance(cache, AnnouncingCache):
        return sum(_num_missing(cache.place(ids).is_resident) for ids in batches)
    for ids in batches[:window]:
        cache.announce(ids)
    cold = 0
    for number in range(len(batches)):
        cold += _num_missing(cache.place_next().is_resident)
        for ids in batches[number + window : number + window + 1]:
            cache.announce(ids)
    return cold


def _num_missing(is_resident: np.ndarray) -> int:
    return len(is_resident) - int(np.count_nonzero(is_resident))


def _batches(topology: Topology, share: float, options: argparse.Namespace) -> Iterator[np.ndarray]:
    """Ids of the rows that each batch of all epochs reads."""
    generator = torch.Generator().manual_seed(0)
    seeds = torch.randperm(topology.num_src, generator=generator)[: max(1, int(share * topology.num_src))]
    size = max(1, min(LARGEST_BATCH, len(seeds) // BATCHES_PER_EPOCH))
    sampler = NeighborSampler(topology, options.fanouts, seed=0)
    for epoch in range(options.epochs):
        for number, ids in enumerate(seed_batches(seeds, size, seed=0, epoch=epoch)):
            yield sampler.sample(ids, epoch=epoch, batch=number).src_ids.numpy()


def _graphs(options: argparse.Namespace) -> Iterable[tuple[str, Topology, float]]:
    """Names, topologies and shares of seeds."""
    for vertices, edges in options.rmat:
        src, dst = rmat_edges(vertices, edges, seed=0)
        topology = Topology.from_coo(src=src, dst=dst, num_src=vertices)
        del src, dst
        yield f"R-MAT, {vertices / 1e6:g}M vertices, {edges / 1e6:g}M edges", topology, options.labelled
    if options.data is not None:
        for path in sorted(options.data.glob("*.npz")):
            try:
                yield path.stem, load_graph(str(path)).topology, options.share
            except DatasetError as error:
                print(f"{path.stem} is left out: {error}", file=sys.stderr)


def _options() -> argparse.Namespace:
    def pair(text: str) -> tuple[int, int]:
        vertices, edges = text.split(",")
        return int(float(vertices)), int(float(edges))

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of real graphs, NAME.npz")
    parser.add_argument(
        "--rmat",
        type=pair,
        nargs="*",
        default=[(1_000_000, 20_000_000), (5_000_000, 100_000_000)],
        help="vertices and edges of power-law graphs, such as 5e6,100e6",
    )
    parser.add_argument("--labelled", type=float, default=0.01, help="share of seeds in power-law graphs")
    parser.add_argument("--share", type=float, default=0.1, help="share of seeds in real graphs")
    parser.add_argument("--hot", type=float, default=0.1, help="part of the rows that are hot")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--windows", type=int, nargs="*", default=[4, 16])
    parser.add_argument("--fanouts", type=lambda text: tuple(map(int, text.split(","))), default=(25, 10))
    parser.add_argument("--speed", action="store_true", help="print ids per second of each cache as well")
    return parser.parse_args()


if __name__ == "__main__":
    main()
