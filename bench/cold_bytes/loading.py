"""Seconds of loading an epoch's features from disk under a hard memory limit: ``python -m bench.cold_bytes.loading --work FOLDER``.

The limit is a quarter of the features, and holds for all memory of the process and for its page cache. Before each run the system's
cache drops the file. Contestants take turns and load the same batches of sampled vertices; maps of the file load fewer of them, since a
batch takes them minutes. Needs memory control groups that may be written. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from bench.cold_bytes.loading_worker import FLOAT_BYTES, WIDTH
from bench.origin import commit
from bench.size.limit import Limit, drop_cached
from sagann.byte_size import format_bytes
from sagann.graph import Topology, rmat_edges
from sagann.sampling import NeighborSampler, seed_batches

MAPS = ("memmap", "from_file")
VARIANTS = (*MAPS, "static", "s3-fifo", "look-ahead")
LIMIT_SHARE = 4
"The features have so many times the bytes of the limit."
LEAST_LIMIT_BYTES = 512 << 20
"Python, PyTorch and compiled code take a third of this before the first row is loaded."


def main() -> None:
    """Write a graph's features and batches, and let the contestants load them in turns."""
    options = _options()
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in options.variants}
    with TemporaryDirectory(prefix="sagann_loading_", dir=options.work) as name:
        folder = Path(name)
        num_rows = _write(folder, options)
        num_bytes = _limit_bytes(options)
        with Limit(f"sagann_loading_{os.getpid()}", num_bytes) as limit:
            for _ in range(options.rounds):
                for variant in options.variants:
                    drop_cached(folder)
                    count = options.map_batches + 1 if variant in MAPS else options.batches
                    script = ["-m", "bench.cold_bytes.loading_worker", name, variant, options.hot, str(count)]
                    ended = limit.run([sys.executable, *script])
                    if ended.outcome != "ok":
                        print(f"{variant} {ended.outcome}: {ended.errors}", file=sys.stderr)
                        continue
                    turns[variant].append(json.loads(ended.output))
    require_same_rows([turn for each in turns.values() for turn in each])
    print(f"`python -m bench.cold_bytes.loading {' '.join(sys.argv[1:])}` at {commit()}.\n")
    print(
        f"{options.vertices:g} vertices, {LIMIT_SHARE * num_bytes / 2**20:,.0f} MiB of features, a limit of "
        f"{num_bytes / 2**20:,.0f} MiB; {num_rows:,} rows in {options.batches} batches.\n"
    )
    print("\n".join(rows_of(turns)))


def require_same_rows(turns: Sequence[dict[str, Any]]) -> None:
    """Refuse figures of contestants that have read other values: each batch has one sum."""
    for numbers in zip_longest(*(turn["totals"] for turn in turns)):
        assert len(set(numbers) - {None}) == 1, "contestants read other rows"


def rows_of(turns: dict[str, list[dict[str, Any]]]) -> list[str]:
    """A table with a row for each contestant that came to its end; seconds are medians over its turns."""
    of_batch = {
        name: median(turn["seconds"] / len(turn["totals"]) for turn in each) for name, each in turns.items() if each
    }
    rows = [
        "| contestant | batches | s / batch | memmap / it | hits | reads | MiB read |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, seconds in of_batch.items():
        last = turns[name][-1]
        ratio = f"{of_batch['memmap'] / seconds:.1f}" if "memmap" in of_batch else "-"
        cells = [name, str(len(last["totals"])), f"{seconds:.3f}", ratio]
        if "hit_rate" in last:
            cells += [f"{last['hit_rate']:.1%}", f"{last['reads']:,}", f"{last['read_bytes'] / 2**20:,.0f}"]
        else:
            cells += ["-"] * 3
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def _limit_bytes(options: argparse.Namespace) -> int:
    return int(options.vertices) * WIDTH * FLOAT_BYTES // LIMIT_SHARE


def _write(folder: Path, options: argparse.Namespace) -> int:
    """Write features, batches and the order of out-degree; returns the number of rows in all batches but the first."""
    num_vertices, num_edges = int(options.vertices), int(options.edges)
    src, dst = rmat_edges(num_vertices, num_edges, seed=0)
    topology = Topology.from_coo(src=src, dst=dst, num_src=num_vertices)
    del src, dst
    hottest = torch.bincount(topology.indices, minlength=num_vertices).argsort(descending=True, stable=True)
    np.save(folder / "hottest.npy", hottest.numpy())
    seeds = torch.randperm(num_vertices, generator=torch.Generator().manual_seed(0))
    sampler = NeighborSampler(topology, options.fanouts)
    chosen = seed_batches(seeds, options.batch_size)[: options.batches]
    batches = [sampler.sample(ids, batch=number).src_ids.numpy() for number, ids in enumerate(chosen)]
    np.save(folder / "ids.npy", np.concatenate(batches))
    np.save(folder / "offsets.npy", np.cumsum([0, *map(len, batches)]))
    generator = np.random.default_rng(0)
    with (folder / "features.bin").open("wb") as file:
        for first in range(0, num_vertices, 100_000):
            count = min(100_000, num_vertices - first)
            generator.random((count, WIDTH), dtype=np.float32).tofile(file)
    return sum(map(len, batches[1:]))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vertices", type=float, default=6e6)
    parser.add_argument("--edges", type=float, default=60e6)
    parser.add_argument("--fanouts", type=lambda text: tuple(map(int, text.split(","))), default=(25, 10))
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=33, help="the first one is not timed")
    parser.add_argument("--map-batches", type=int, default=1, help="batches that maps of the file load in the time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hot", default="10%")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--work", type=Path, help="folder for the features, deleted after use; on a disk")
    options = parser.parse_args()
    if (limit_bytes := _limit_bytes(options)) < LEAST_LIMIT_BYTES:
        least = LEAST_LIMIT_BYTES * LIMIT_SHARE // (WIDTH * FLOAT_BYTES)
        parser.error(
            f"a limit of {format_bytes(limit_bytes)} has no room for a process of PyTorch; pass --vertices {least} or more"
        )
    return options


if __name__ == "__main__":
    main()
