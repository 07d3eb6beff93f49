"""Topology and Graph: vertices, edges and what they carry. Opens no file."""

from sagann.graph.graph import SPLIT_NAMES, Graph
from sagann.graph.normalise import normalise
from sagann.graph.split import graph_split, per_class_split, random_split
from sagann.graph.subgraph import relabel, subgraph
from sagann.graph.topology import Csr, Topology, id_dtype
from sagann.graph.transform import add_inverse_edges, add_self_loops, coalesce, remove_self_loops, symmetrise
from sagann.graph.validate import validate_graph

__all__ = [
    "SPLIT_NAMES",
    "Csr",
    "Graph",
    "Topology",
    "add_inverse_edges",
    "add_self_loops",
    "coalesce",
    "graph_split",
    "id_dtype",
    "normalise",
    "per_class_split",
    "random_split",
    "relabel",
    "remove_self_loops",
    "subgraph",
    "symmetrise",
    "validate_graph",
]
