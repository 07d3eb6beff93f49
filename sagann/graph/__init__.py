"""Topology and Graph: vertices, edges and what they carry. Opens no file."""

from sagann.graph.graph import SPLIT_NAMES, Graph
from sagann.graph.topology import Csr, Topology, id_dtype

__all__ = ["SPLIT_NAMES", "Csr", "Graph", "Topology", "id_dtype"]
