"""However a graph comes about, the in-edges of every vertex ascend by source: ties of extrema depend on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from sagann.graph import (
    Graph,
    Topology,
    add_inverse_edges,
    add_self_loops,
    coalesce,
    demo_graph,
    relabel,
    remove_self_loops,
    rmat_graph,
    subgraph,
    symmetrise,
)
from sagann.interop import from_scipy
from sagann.storage import import_edge_list, import_npz, open_graph, read_npz
from sagann.storage.reorder import save_reordered

N, NUM_EDGES = 60, 900
ENDS = np.random.default_rng(3).integers(0, N, (2, NUM_EDGES))
ORDER = torch.randperm(N, generator=torch.Generator().manual_seed(4))


def drawn() -> Graph:
    src, dst = torch.from_numpy(ENDS)
    data = {"type": torch.arange(NUM_EDGES) % 3, "weight": torch.ones(NUM_EDGES)}
    return Graph(topology=Topology.from_coo(src=src, dst=dst, num_src=N, edge_data=data), num_edge_types=3)


def of_csv(folder: Path) -> Graph:
    np.savetxt(folder / "edges.csv", ENDS.T, fmt="%d", delimiter=",")
    import_edge_list(folder / "edges.csv", folder / "graph")
    return open_graph(folder / "graph")


def npz(folder: Path) -> Path:
    np.savez(folder / "edges.npz", edge_index=ENDS)
    return folder / "edges.npz"


def of_npz(folder: Path) -> Graph:
    import_npz(npz(folder), folder / "graph")
    return open_graph(folder / "graph")


def reordered(folder: Path) -> Graph:
    save_reordered(drawn(), ORDER, folder / "graph")
    return open_graph(folder / "graph")


def of_scipy(_: Path) -> Graph:
    return from_scipy(sp.coo_matrix((np.ones(NUM_EDGES), ENDS), shape=(N, N)))


BUILDERS: dict[str, Callable[[Path], Graph]] = {
    "from_coo": lambda _: drawn(),
    "demo": lambda _: demo_graph(),
    "rmat": lambda _: rmat_graph(N, NUM_EDGES, seed=0),
    "add_self_loops": lambda _: add_self_loops(drawn()),
    "remove_self_loops": lambda _: remove_self_loops(drawn()),
    "coalesce": lambda _: coalesce(drawn()),
    "symmetrise": lambda _: symmetrise(drawn()),
    "add_inverse_edges": lambda _: add_inverse_edges(drawn()),
    "relabel": lambda _: relabel(drawn(), ORDER),
    "subgraph": lambda _: subgraph(drawn(), ORDER[:40]),
    "SciPy": of_scipy,
    "CSV": of_csv,
    "npz": of_npz,
    "npz that is read": lambda folder: read_npz(npz(folder)),
    "reordered": reordered,
}


@pytest.mark.parametrize("name", BUILDERS)
def test_in_edges_ascend_by_source(name: str, tmp_path: Path) -> None:
    topology = BUILDERS[name](tmp_path).topology
    edges = list(zip(topology.edge_dst().tolist(), topology.indices.tolist(), strict=True))
    assert len(edges) > N
    assert edges == sorted(edges)
