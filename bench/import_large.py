"""Import a graph larger than memory: R-MAT edges in Parquet or CSV shards, under a hard memory limit.

The shards are generated outside the limit. `sagann data import` runs inside a control group, so the
kernel kills it when it exceeds the limit. Afterwards the number and a hash of its edges are compared with the shards'.

    python -m bench.import_large --edges 500000000 --vertices 50000000 --work /path/with/30/GB
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from bench.pages import parser_of
from bench.size.limit import Limit, drop_cached
from sagann.graph.rmat import rmat_chunks
from sagann.storage import open_graph

LIMIT_MIB, MEMORY_MIB = 1024, 256
"Hard limit of memory of the import, and its budget."
SHARD_EDGES = 25_000_000
SLAB_VERTICES = 1 << 20


def main() -> int:
    """Generate, import under the limit, verify; returns the exit code."""
    options = parser_of(
        __doc__,
        {"edges": 500e6, "vertices": 50e6, "work": None},
        format=("parquet", "of the shards", ("parquet", "csv")),
    ).parse_args()
    with tempfile.TemporaryDirectory(prefix="import-large-", dir=options.work) as name:
        folder = Path(name)
        (folder / "shards").mkdir()
        began = time.perf_counter()
        expected = _write_shards(folder / "shards", options)
        size = sum(shard.stat().st_size for shard in (folder / "shards").iterdir())
        print(
            f"generated {expected[0]:,} edges, {size / 1e9:.1f} GB, in {time.perf_counter() - began:.0f} s",
            flush=True,
        )
        # What the generator left in the page cache must not make the import look fast, nor its writes slow.
        drop_cached(folder)
        with Limit(f"sagann-import-{os.getpid()}", LIMIT_MIB * 2**20) as limit:
            words = ["data", "import", *(str(folder / name) for name in ("shards", "graph")), "--quiet"]
            words += [f"--memory={MEMORY_MIB}MiB", f"--num-vertices={options.vertices:.0f}"]
            ended = limit.run([sys.executable, "-m", "sagann", *words])
        rate = f"{ended.seconds:.1f} s, {options.edges / ended.seconds / 1e6:.2f} million edges per second"
        held = f"held {ended.own_bytes / 2**20:.0f} MiB, limit reached {ended.hits} times"
        print(f"limit {LIMIT_MIB} MiB: {ended.outcome}, {rate}, {held}\n{ended.errors}")
        if ended.status:
            return ended.status
        found = _counted(_edges_of(folder / "graph"))
        print(
            f"{found[0]:,} imported edges are {'the same as' if found == expected else 'different from'} in the shards"
        )
        return int(found != expected)


def _write_shards(folder: Path, options: argparse.Namespace) -> tuple[int, int]:
    """Write the edges; their number and hash."""

    def written() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        chunks = rmat_chunks(int(options.vertices), int(options.edges), seed=1, chunk_edges=SHARD_EDGES)
        for number, (src, dst) in enumerate(chunks):
            table = pa.table({"src": src.numpy(), "dst": dst.numpy()})
            shard = folder / f"edges-{number:04d}.{options.format}"
            if options.format == "parquet":
                # Ids of a scrambled graph do not repeat within a page: a dictionary costs time and saves nothing.
                pq.write_table(table, shard, row_group_size=2**20, use_dictionary=False)
            else:
                pyarrow.csv.write_csv(table, shard)
            yield src.numpy(), dst.numpy()

    return _counted(written())


def _edges_of(path: Path) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The edges of a dataset, by slabs of destinations."""
    topology = open_graph(path).topology
    indptr, indices = topology.indptr.numpy(), topology.indices.numpy()
    for first in range(0, topology.num_dst, SLAB_VERTICES):
        bounds = indptr[first : first + SLAB_VERTICES + 1]
        yield indices[bounds[0] : bounds[-1]], np.repeat(np.arange(first, first + len(bounds) - 1), np.diff(bounds))


def _counted(edges: Iterator[tuple[np.ndarray, np.ndarray]]) -> tuple[int, int]:
    """The number of edges, and a hash of them that does not depend on their order."""
    count, total = 0, 0
    for src, dst in edges:
        mixed = src.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) ^ dst.astype(np.uint64) * np.uint64(
            0xC2B2AE3D27D4EB4F
        )
        mixed = (mixed ^ mixed >> np.uint64(29)) * np.uint64(0xBF58476D1CE4E5B9)
        count, total = count + len(src), (total + int(mixed.sum())) % 2**64
    return count, total


if __name__ == "__main__":
    sys.exit(main())
