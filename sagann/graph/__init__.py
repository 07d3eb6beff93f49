"""Topology and Graph: vertices, edges and their data. This package opens no file.

Generators and splits of edges need Numba, which is slow to import, so they are imported when they are first used; so are functions that few programs call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sagann.config import LINK_TASK
from sagann.graph.answers import GRAPH_TASKS, SPLIT_NAMES, TASKS, Answers
from sagann.graph.feature_store import AnnouncedFeatures, FeatureStore, declare_constant, feature_store
from sagann.graph.graph import Graph, for_task
from sagann.graph.measured_links import MeasuredLinks
from sagann.graph.rows import id_dtype
from sagann.graph.split import graph_split, per_class_split, planetoid_split, random_graph_split, random_split
from sagann.graph.topology import Csr, Topology
from sagann.graph.transform import (
    add_inverse_edges,
    add_self_loops,
    coalesce,
    normalise,
    normalise_features,
    remove_self_loops,
    symmetrise,
)
from sagann.graph.validate import validate_graph
from sagann.registry import import_lazily

if TYPE_CHECKING:
    from sagann.graph.renumber import original_order as original_order, relabel as relabel, subgraph as subgraph
    from sagann.graph.rmat import (
        Quadrants as Quadrants,
        rmat_chunks as rmat_chunks,
        rmat_edges as rmat_edges,
        rmat_graph as rmat_graph,
    )
    from sagann.graph.sbm import demo_graph as demo_graph, sbm_graph as sbm_graph
    from sagann.graph.split_edges import EdgeSplit as EdgeSplit, edge_split as edge_split

__all__ = [
    "GRAPH_TASKS",
    "LINK_TASK",
    "SPLIT_NAMES",
    "TASKS",
    "AnnouncedFeatures",
    "Answers",
    "Csr",
    "FeatureStore",
    "Graph",
    "MeasuredLinks",
    "Topology",
    "add_inverse_edges",
    "add_self_loops",
    "coalesce",
    "declare_constant",
    "feature_store",
    "for_task",
    "graph_split",
    "id_dtype",
    "normalise",
    "normalise_features",
    "per_class_split",
    "planetoid_split",
    "random_graph_split",
    "random_split",
    "remove_self_loops",
    "symmetrise",
    "validate_graph",
    *import_lazily(
        __name__,
        {
            "renumber": "original_order relabel subgraph",
            "rmat": "Quadrants rmat_chunks rmat_edges rmat_graph",
            "sbm": "demo_graph sbm_graph",
            "split_edges": "EdgeSplit edge_split",
        },
    ),
]
