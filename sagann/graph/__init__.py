"""Topology and Graph: vertices, edges and what they carry. Opens no file."""

from sagann.graph.graph import SPLIT_NAMES, Graph
from sagann.graph.normalise import normalise
from sagann.graph.subgraph import relabel, subgraph
from sagann.graph.topology import Csr, Topology, id_dtype
from sagann.graph.transform import add_inverse_edges, add_self_loops, coalesce, remove_self_loops, symmetrise

__all__ = [
    "SPLIT_NAMES",
    "Csr",
    "Graph",
    "Topology",
    "add_inverse_edges",
    "add_self_loops",
    "coalesce",
    "id_dtype",
    "normalise",
    "relabel",
    "remove_self_loops",
    "subgraph",
    "symmetrise",
]
