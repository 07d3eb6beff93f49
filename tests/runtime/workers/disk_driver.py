"""Bytes that two processes read in an epoch from a disk that they share, and its seconds; run by test_shared_disk.py as a program of its own.

Each trains the whole graph from a copy of its own, or both train it as workers. Both stream, and nothing lies in the system's cache before.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import time
from pathlib import Path

import torch

import sagann
from bench.size.limit import drop_cached
from sagann.graph import Graph, Topology, random_split
from sagann.nn import ModelConfig, build_model
from sagann.runtime.workers import Workers
from sagann.train.contract import Contract
from sagann.train.epoch_source import WholeGraph
from sagann.train.predictor import Predictor
from sagann.train.streamed import Streaming
from tests.runtime.workers.processes import run_workers

NUM_VERTICES, NUM_FEATURES = 40_000, 64
WAYS = ("alone", "together")


def ring() -> Graph:
    """Vertices with edges from both neighbours: parts read few rows of each other."""
    ids = torch.arange(NUM_VERTICES)
    topology = Topology.from_coo(
        src=torch.cat([ids, ids]), dst=torch.cat([ids + 1, ids - 1]) % NUM_VERTICES, num_src=NUM_VERTICES
    )
    graph = Graph(topology=topology, features=torch.randn(NUM_VERTICES, NUM_FEATURES), labels=ids % 3)
    return random_split(graph, train=0.5, val=0.2, seed=0)


def read_bytes() -> int:
    """Bytes that the disk has given to this process."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["read_bytes"])


def unmap_pages(folder: Path) -> None:
    """Take the pages of a folder's files from this process: the system's cache keeps what a process has mapped and read."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if str(folder) in line:
            begin, end = (int(each, 16) for each in line.split()[0].split("-"))
            libc = ctypes.CDLL(None, use_errno=True)
            assert libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED) == 0


def measure(workers: Workers, folder: Path, way: str, group: Path) -> None:
    """Train two epochs, the second one from the disk alone, within a control group; write its bytes, seconds and loss."""
    torch.manual_seed(0)
    data = folder / f"graph {workers.rank if way == 'alone' else 0}"
    graph = sagann.load_graph(data)
    # Without dropout, what is read in every epoch would be sums over the features that were made once.
    model = build_model(ModelConfig(model="gcn", hidden=8, dropout=0.3), graph)
    predictor = Predictor(
        model, Contract.of(graph), device=torch.device("cpu"), workers=workers if way == "together" else None
    )
    prepared = predictor.prepare(graph)
    predictor.stream_within(Streaming(memory_bytes=4 << 20, spill=folder))
    source = WholeGraph(predictor, prepared)
    predictor.try_out(prepared)
    model.train()
    for epoch in (1, 2):
        (step,) = source.steps(epoch)
        torch.manual_seed(epoch)
        if epoch == 2:
            unmap_pages(data)
            workers.texts("", "leaving the cache to nobody")
            drop_cached(data)
            (group / "cgroup.procs").write_text("0")
        workers.texts("", "beginning an epoch")
        before, since_s = read_bytes(), time.perf_counter()
        loss = step.loss()
        loss.backward()
        loss, _ = step.complete(loss.detach(), step.num_edges)
    found = read_bytes() - before, time.perf_counter() - since_s, loss.item()
    torch.save(found, folder / f"{way} {workers.rank}.pt")
    predictor.release()


def main(folder: Path, group: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    graph = ring()
    for rank in range(2):
        sagann.save_graph(graph, folder / f"graph {rank}")
    for way in WAYS:
        run_workers(lambda workers, way=way: measure(workers, folder, way, group), 2)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
