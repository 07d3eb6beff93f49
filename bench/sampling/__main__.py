"""Sampled edges per second and core, on a power-law graph, against PyG and DGL: ``python -m bench.sampling --dgl PYTHON``.

Every contestant is a process that keeps the graph and the compiled code. Each of its threads samples whole batches on one core. The
contestants take turns, with the same seeds and fanouts. "edges / s and core" is the median over the turns of edges by
seconds and threads; "edges / core-s" divides by the processor time used, which other work on the machine does not change
much. With ``--device cuda``, that device samples too, with the edges in its memory and in the host's ("in place"); its rates are those of the whole
device. The libraries pick different numbers of edges: PyG samples a vertex once, and not again for every hop.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from bench.contest import Contestant, take_turns
from bench.result_tables import table_line
from bench.workers import ROOT
from sagann.graph import Topology, rmat_edges

FANOUTS = ((25, 10), (15, 10, 5), (12, 12, 12))
REHEARSAL = (2000, 20_000)
"Vertices and edges of the graph on which workers compile and import."


def main() -> None:
    """Print a table for each of the fanouts."""
    options = _options()
    contestants = _contestants(options.dgl, options.device)
    with TemporaryDirectory(prefix="sagann_sampling_", dir=options.work) as folder:
        _write(Path(folder), int(options.vertices), int(options.edges), int(options.seeds))
        _write(Path(folder) / "rehearsal", *REHEARSAL, options.batch_size)
        print(
            f"R-MAT, {int(options.vertices):,} vertices, {int(options.edges):,} edges; batches of {options.batch_size} seeds; "
            f"{options.threads} threads; {options.rounds} rounds of {options.batches} batches.\n"
        )
        for fanouts in options.fanouts:
            print(f"Fanouts {', '.join(map(str, fanouts))}:\n")
            print(
                "| contestant | edges / turn | edges / s and core, millions | edges / core-s, millions | sagann / it |"
            )
            print("|---|--:|--:|--:|--:|")
            for row in rows_of(measure(contestants, fanouts, folder, options), options.threads):
                print(table_line(row), flush=True)
            print()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vertices", type=float, default=5e6)
    parser.add_argument("--edges", type=float, default=100e6)
    parser.add_argument("--seeds", type=float, default=200e3, help="vertices that batches are taken from")
    parser.add_argument("--batch-size", type=int, default=1024, help="seeds of a batch")
    parser.add_argument("--batches", type=int, default=8, help="batches of each thread in a turn")
    parser.add_argument("--rounds", type=int, default=7, help="turns of every contestant")
    parser.add_argument("--threads", type=int, default=1, help="threads that sample, a core each")
    parser.add_argument("--device", help="cuda or cuda:N: the device samples as well")
    parser.add_argument("--dgl", help="Python of an environment with DGL")
    parser.add_argument(
        "--work", type=Path, help="folder for the graph; the system's for temporary files by default"
    )
    parser.add_argument(
        "--fanouts",
        type=lambda text: tuple(map(int, text.split(","))),
        nargs="+",
        default=FANOUTS,
        help="numbers of edges, nearest hop first, such as 15,10,5",
    )
    return parser.parse_args()


def _contestants(dgl: str | None, device: str | None) -> list[Contestant]:
    def of(system: str, command: Sequence[str], *variants: str) -> list[Contestant]:
        return [Contestant(name=f"{system}:{variant}", command=tuple(command)) for variant in variants]

    on_device = () if device is None else ("device", "in place")
    found = of("sagann", (sys.executable, "-m", "bench.sampling.sagann_worker"), "plain", "prepared", *on_device)
    found += of("pyg", (sys.executable, "-m", "bench.sampling.pyg_worker"), "sampler", "loader")
    if dgl is not None:
        found += of("dgl", (dgl, str(ROOT / "bench/standalone/dgl_sampling.py")), "graphbolt", "dataloading")
    return found


def _write(folder: Path, num_vertices: int, num_edges: int, num_seeds: int) -> None:
    """Write a graph and the seeds of an epoch."""
    src, dst = rmat_edges(num_vertices, num_edges, seed=0)
    topology = Topology.from_coo(src=src, dst=dst, num_src=num_vertices)
    seeds = torch.randperm(num_vertices, generator=torch.Generator().manual_seed(0))[:num_seeds]
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in (("indptr", topology.indptr), ("indices", topology.indices), ("seeds", seeds)):
        np.save(folder / f"{name}.npy", array.numpy())


def measure(
    contestants: Sequence[Contestant], fanouts: Sequence[int], folder: str, options: argparse.Namespace
) -> dict[str, list[dict[str, Any]]]:
    """Turns of every contestant that lives through them, in alternation."""

    def specification(contestant: Contestant) -> dict[str, Any]:
        return {
            "variant": contestant.variant,
            "fanouts": list(fanouts),
            "batch_size": options.batch_size,
            "sampling_threads": options.threads,
            "threads": 1,
            "device": options.device,
            "folder": folder,
        }

    batches = {"batches": options.batches * options.threads}
    first = {"batches": options.threads}
    return take_turns(contestants, specification, first=first, request=batches, rounds=options.rounds)


def rows_of(turns: Mapping[str, Sequence[Mapping[str, float]]], threads: int) -> list[list[str]]:
    """A row of the table for each contestant. Ratios are those of sagann's first variant."""
    rates = {name: [turn["edges"] / turn["seconds"] / threads for turn in each] for name, each in turns.items()}
    ours = next((rate for name, rate in rates.items() if name.startswith("sagann")), None)
    rows = []
    for name, each in turns.items():
        core_rate = median(turn["edges"] / turn["core_s"] for turn in each)
        ratio = median(a / b for a, b in zip(ours, rates[name], strict=True)) if ours else float("nan")
        edges = sum(turn["edges"] for turn in each) / len(each)
        rows.append(
            [name, f"{edges:,.0f}", f"{median(rates[name]) / 1e6:.1f}", f"{core_rate / 1e6:.1f}", f"{ratio:.2f}"]
        )
    return rows


if __name__ == "__main__":
    main()
