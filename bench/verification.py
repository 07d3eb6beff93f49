"""What it costs to compare checksums while a dataset's values are checked: ``python -m bench.verification --work FOLDER``.

The dataset is R-MAT with dense features, in the page cache. Opening and checking it takes turns: values alone (``--no-verify``), and with
checksums by zlib and by isal. A row has the medians of the rounds, after one that compiles.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from isal import isal_zlib

from bench.origin import commit
from sagann.graph import Graph, Topology, rmat_edges
from sagann.runtime.processor import processor_name
from sagann.storage import load_graph, save_graph
from sagann.storage.verify import check_graph

WAYS: dict[str, Callable[[Any, int], int] | None] = {
    "values alone": None,
    "checksums by zlib": zlib.crc32,
    "checksums by isal": isal_zlib.crc32,
}
"What computes checksums in each way."


def main() -> None:
    """Print a row for every way."""
    options = _options()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory(prefix="sagann_verification_", dir=options.work) as name:
        folder = Path(name) / "graph"
        save_graph(_generated(int(options.vertices), int(options.edges), options.features), folder)
        num_bytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        print(f"`python -m bench.verification {' '.join(sys.argv[1:])}` at {commit()}; {processor_name()}.\n")
        print(f"{num_bytes / 1e9:.2f} GB, {options.threads} threads, {options.rounds} rounds.\n")
        turns: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
        for _ in range(1 + options.rounds):
            for way, found in turns.items():
                found.append(seconds_of(folder, WAYS[way]))
    core_s, wall_s = (
        {way: median(turn[part] for turn in found[1:]) for way, found in turns.items()} for part in (0, 1)
    )
    print("| way | core-s | s | core-s of checksums per GB |\n|---|--:|--:|--:|")
    for way in WAYS:
        more_s = core_s[way] - core_s["values alone"]
        print(f"| {way} | {core_s[way]:.3f} | {wall_s[way]:.3f} | {more_s / num_bytes * 1e9:.3f} |")


def seconds_of(folder: Path, crc32: Callable[[Any, int], int] | None) -> tuple[float, float]:
    """Seconds of the cores, and of the clock, in which a dataset is opened and checked."""
    with patch("sagann.storage.crc32._crc32", crc32 or zlib.crc32):
        began_core_s, began_s = time.process_time(), time.perf_counter()
        check_graph(load_graph(folder, verify=crc32 is not None))
        return time.process_time() - began_core_s, time.perf_counter() - began_s


def _generated(num_vertices: int, num_edges: int, num_features: int) -> Graph:
    src, dst = rmat_edges(num_vertices, num_edges, seed=0)
    generator = torch.Generator().manual_seed(0)
    return Graph(
        topology=Topology.from_coo(src=src, dst=dst, num_src=num_vertices),
        features=torch.randn(num_vertices, num_features, generator=generator),
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vertices", type=float, default=1.5e6)
    parser.add_argument("--edges", type=float, default=20e6)
    parser.add_argument("--features", type=int, default=160)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--work", type=Path, help="folder for the dataset; the system's for temporary files by default"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
