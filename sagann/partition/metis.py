"""METIS: vertices in an order in which neighbours stand close, so that intervals of ids are parts with few edges between.

References:
    Karypis and Kumar, A fast and high quality multilevel scheme for partitioning irregular graphs, SIAM Journal on Scientific
    Computing 20(1), 1998. Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.2 and 4: the min-cut partition of METIS. We differ in
    that the parts only give an order, finer than intervals are, which are cut wherever bytes are equally many.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from sagann.errors import InputError, MissingDependencyError
from sagann.graph.graph import Graph
from sagann.graph.topology import Topology
from sagann.graph.transform import remove_self_loops, symmetrise

DEFAULT_PARTS = 128


def metis_order(topology: Topology, *, num_parts: int = DEFAULT_PARTS, seed: int = 0) -> Tensor:
    """The vertices part by part; those of a part in ascending order.

    Parts come from bisecting the graph again and again, so that parts with close numbers are parts of a larger one, and
    intervals of several of them are good parts too. Edges count once, whatever their direction and number. It takes about
    ten times the memory of the edges.

    Args:
        topology: of a whole graph, in memory.
        num_parts: at least as many as there will be intervals.
        seed: of METIS.
    Returns:
        int64 [num_vertices], a permutation: first comes vertex ``order[0]``.
    Raises:
        MissingDependencyError: pymetis is not installed.
        InputError: the number of parts is not positive.
    """
    if num_parts < 1:
        raise InputError(
            "a graph cannot be cut into that few parts",
            value=f"{num_parts}, at least 1",
            where="metis_order",
            fix="Pass a positive number of parts.",
        )
    pymetis = _pymetis()
    num_parts = min(num_parts, topology.num_dst)
    if num_parts <= 1:
        return torch.arange(topology.num_dst)
    plain = Topology(indptr=topology.indptr, indices=topology.indices, num_src=topology.num_src, validate=False)
    both = symmetrise(remove_self_loops(Graph(topology=plain))).topology
    parts = pymetis.part_graph(
        num_parts,
        pymetis.CSRAdjacency(
            both.indptr.numpy().astype(pymetis.zero_copy_dtype()),
            both.indices.numpy().astype(pymetis.zero_copy_dtype()),
        ),
        recursive=True,
        options=pymetis.Options(seed=seed),
    )
    return torch.sort(torch.as_tensor(parts.vertex_part), stable=True).indices


def _pymetis() -> Any:
    try:
        return importlib.import_module("pymetis")
    except ImportError as error:
        raise MissingDependencyError("pymetis", extra="metis", feature="the order 'metis'") from error
