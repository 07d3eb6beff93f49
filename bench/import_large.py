"""Import a graph larger than memory: R-MAT edges in Parquet or CSV shards, under a hard memory limit.

The shards are generated outside the limit. The import runs in a process of its own inside a control group, so
going over the limit is death and not a matter of measuring. Afterwards the result is compared
with the shards: number of edges, offsets that never fall, and the in-edges of sampled destinations, by source.

    python -m bench.import_large --edges 500000000 --vertices 50000000 --folder /path/with/30/GB
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from bench.size.limit import Limit, drop_cached

SHARD_EDGES = 25_000_000


def main() -> int:
    """Generate, import under the limit, verify; returns the exit code."""
    options = _arguments()
    if options.child:
        return _import(options)
    with tempfile.TemporaryDirectory(prefix="import-large-", dir=options.folder) as name:
        folder = Path(name)
        shards = folder / "shards"
        shards.mkdir()
        began = time.perf_counter()
        for shard in _write_shards(shards, options):
            print(f"wrote {shard.name}: {shard.stat().st_size / 1e9:.2f} GB", flush=True)
        size = sum(shard.stat().st_size for shard in shards.iterdir())
        print(f"generated {options.edges:,} edges, {size / 1e9:.1f} GB, in {time.perf_counter() - began:.0f} s")
        # What the generator left in the page cache must not make the import look fast, nor its writes slow.
        drop_cached(shards)
        failure = _import_limited(folder, options)
        if failure or not (folder / "graph").exists():
            return failure
        return _verify(shards, folder / "graph", options)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--edges", type=int, default=500_000_000)
    parser.add_argument("--vertices", type=int, help="default a tenth of the edges")
    parser.add_argument("--format", choices=["parquet", "csv"], default="parquet")
    parser.add_argument("--limit-mib", type=int, default=1024, help="hard memory limit of the import")
    parser.add_argument("--memory-mib", type=int, default=256, help="working memory the import is told to use")
    parser.add_argument("--symmetrise", action="store_true")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--samples", type=int, default=1000, help="destinations to compare with the shards")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.vertices = options.vertices or max(1, options.edges // 10)
    return options


def _write_shards(folder: Path, options: argparse.Namespace) -> list[Path]:
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    from sagann.graph.rmat import rmat_chunks

    shards = []
    chunks = rmat_chunks(options.vertices, options.edges, seed=1, chunk_edges=SHARD_EDGES)
    for number, (src, dst) in enumerate(chunks):
        table = pa.table({"src": src.numpy(), "dst": dst.numpy()})
        shard = folder / f"edges-{number:04d}.{options.format}"
        if options.format == "parquet":
            # Ids of a scrambled graph do not repeat within a page: a dictionary costs time and saves nothing.
            pq.write_table(table, shard, row_group_size=2**20, use_dictionary=False)
        else:
            pyarrow.csv.write_csv(table, shard)
        shards.append(shard)
    return shards


def _import_limited(folder: Path, options: argparse.Namespace) -> int:
    """Run the import in a control group of its own; returns 0 when it lived."""
    try:
        limit = Limit(f"sagann-import-{os.getpid()}", options.limit_mib * 2**20)
    except RuntimeError as error:
        print(f"SKIPPED: {error}")
        return 0
    with limit:
        ended = limit.run([sys.executable, "-m", "bench.import_large", *sys.argv[1:], "--child", str(folder)])
    print(ended.output, end="")
    print(
        f"limit {options.limit_mib} MiB: {ended.outcome}, held {ended.own_bytes / 2**20:.0f} MiB, limit reached {ended.hits} times"
    )
    if ended.status:
        print(f"FAILED: {ended.errors}")
    return ended.status


def _import(options: argparse.Namespace) -> int:
    from sagann.storage import ImportOptions, import_edge_list
    from sagann.train.resources import peak_rss_bytes

    stages: dict[str, float] = {}
    last = time.perf_counter()

    def tell(done: int, total: int | None, unit: str, stage: str) -> None:
        nonlocal last
        now = time.perf_counter()
        stages[stage] = stages.get(stage, 0.0) + now - last
        last = now

    began = time.perf_counter()
    import_edge_list(
        options.child / "shards",
        options.child / "graph",
        options=ImportOptions(
            num_vertices=options.vertices,
            symmetrise=options.symmetrise,
            memory_bytes=options.memory_mib * 2**20,
            progress=tell,
        ),
    )
    seconds = time.perf_counter() - began
    report = {
        "edges": options.edges,
        "seconds": round(seconds, 1),
        "million_edges_per_s": round(options.edges / seconds / 1e6, 2),
        "peak_rss_mib": peak_rss_bytes() >> 20,
        "stages_s": {stage: round(spent, 1) for stage, spent in stages.items()},
    }
    print(json.dumps(report), flush=True)
    return 0


def _verify(shards: Path, path: Path, options: argparse.Namespace) -> int:
    from sagann.storage import open_graph
    from sagann.storage.tables import open_table

    graph = open_graph(path)
    topology = graph.topology
    indptr = topology.indptr.numpy()
    step = 2**22
    monotone = all((np.diff(indptr[begin : begin + step + 1]) >= 0).all() for begin in range(0, len(indptr), step))
    counts = indptr[0] == 0 and indptr[-1] == topology.num_edges
    counts = counts and (options.symmetrise or topology.num_edges == options.edges)
    sample = np.unique(np.random.default_rng(0).integers(options.vertices, size=options.samples))
    # Destinations of edges, so that large ones are among the samples as well.
    first = next(open_table(sorted(shards.iterdir())[0]).batches(["dst"], ["int64"])).columns[0]
    sample = np.union1d(sample, first[: options.samples])
    sampled = np.zeros(options.vertices, dtype=bool)
    sampled[sample] = True
    sources, destinations = [], []
    for shard in sorted(shards.iterdir()):
        for batch in open_table(shard).batches(["src", "dst"], ["int64", "int64"]):
            src, dst = batch.columns
            ends = [(src, dst), (dst, src)] if options.symmetrise else [(src, dst)]
            for these, those in ends:
                keep = sampled[those]
                sources.append(these[keep])
                destinations.append(those[keep])
    all_sources, all_destinations = np.concatenate(sources), np.concatenate(destinations)
    order = np.lexsort([all_sources, all_destinations])
    all_sources, all_destinations = all_sources[order], all_destinations[order]
    begins, ends_ = (np.searchsorted(all_destinations, sample, side) for side in ("left", "right"))
    wrong = 0
    for vertex, begin, end in zip(sample, begins, ends_, strict=True):
        expected = all_sources[begin:end]
        expected = np.unique(expected) if options.symmetrise else expected
        found = topology.indices[indptr[vertex] : indptr[vertex + 1]].numpy()
        wrong += not np.array_equal(found, expected)
    size = sum(file.stat().st_size for file in path.iterdir())
    print(
        f"verified: {topology.num_edges:,} edges ({size / 1e9:.2f} GB), counts {'agree' if counts else 'DIFFER'}, "
        f"offsets {'rise' if monotone else 'FALL'}, {len(sample)} destinations with "
        f"{len(all_sources):,} edges compared, {wrong} wrong"
    )
    shutil.rmtree(path)
    return 0 if counts and monotone and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
