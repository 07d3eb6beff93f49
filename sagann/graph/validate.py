"""Check every value of a graph before training, so that bad input never becomes a bad model.

A message names the first offending vertex or edge.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sagann.errors import InputError
from sagann.graph.checks import (
    check_columns,
    check_finite,
    check_offsets,
    check_types,
    first_true,
    numbered,
    require_array,
    require_distinct,
)
from sagann.graph.feature_store import feature_store, read_pieces
from sagann.graph.graph import Graph
from sagann.graph.large_arrays import slabs
from sagann.graph.rows import is_sparse
from sagann.graph.topology import destinations

FEATURE_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
TYPE_DTYPES = (torch.uint8, torch.int16, torch.int32, torch.int64)


def validate_graph(graph: Graph) -> None:
    """Check every value of ``graph``, in O(edges + features).

    Raises:
        InputError: a value is wrong; the message names the first offending vertex or edge.
    """
    graph.topology.validate()
    validate_graphs(graph)
    _check_edge_data(graph)
    _check_features(graph)
    if graph.original_ids is not None:
        require_distinct(graph.original_ids, graph.num_vertices, where=_name(graph, "original_ids"))
    validate_labels(graph)


def validate_labels(graph: Graph) -> None:
    """Check the labels, targets and splits of vertices and of graphs, and the links to measure, in O(vertices + links)."""
    if graph.links is not None:
        where = f"links of graph '{graph.name}'"
        graph.links.check(graph.num_vertices, graph.num_edge_types, where=where)
    for answers in graph.all_answers:
        answers.validate()


def _name(graph: Graph, array: str) -> str:
    return f"{array} of graph '{graph.name}'"


def validate_graphs(graph: Graph) -> None:
    """Check offsets and names of several graphs in one, and that no edge joins two of them, in O(edges)."""
    ptr, names = graph.graph_ptr, graph.graph_names
    if ptr is not None:
        where = _name(graph, "graph_ptr")
        hint = "Convert the offsets with .to(torch.int64)."
        require_array(ptr, (torch.int64,), "[num_graphs + 1]", where=where, hint=hint)
        check_offsets(ptr, graph.num_vertices, "graph offsets", where=where)
    num_graphs = 0 if ptr is None else graph.num_graphs
    if names and len(names) != num_graphs:
        raise InputError(
            f"graphs and their names differ in number: {len(names)} names, {num_graphs} "
            f"graphs{' because there is no graph_ptr' if ptr is None else ''} (in {_name(graph, 'graph_names')})",
            hint="Pass one name per graph, or none.",
        )
    if ptr is not None:
        _check_no_crossing(graph, ptr)


def _check_no_crossing(graph: Graph, ptr: Tensor) -> None:
    topology = graph.topology
    for rows, edges in slabs(topology.indptr):
        src, dst = topology.indices[edges].long(), destinations(topology, rows, edges).long()
        owner = torch.bucketize(dst, ptr, right=True) - 1
        at = first_true((src < ptr[owner]) | (src >= ptr[owner + 1]))
        if at is not None:
            source_graph = int(torch.bucketize(src[at], ptr, right=True)) - 1
            raise InputError(
                f"an edge joins two graphs: {int(src[at])} -> {int(dst[at])}, from graph {source_graph} to "
                f"graph {int(owner[at])} (in {_name(graph, 'edges')}, edge {edges.start + at})",
                hint="Remove the edge, or correct graph_ptr.",
            )


def _check_edge_data(graph: Graph) -> None:
    data = graph.topology.edge_data
    weight, types = data.get("weight"), data.get("type")
    if weight is not None:
        where, hint = _name(graph, "edge data 'weight'"), "Convert the weights with .float(), one per edge."
        require_array(weight, FEATURE_DTYPES, "[num_edges]", where=where, hint=hint, kind="floating point")
    for name, rows in data.items():
        if rows.is_floating_point():
            what = f"edge data '{name}'"
            check_finite(rows, what, where=numbered(_name(graph, what), "edge"))
    if types is not None:
        where = _name(graph, "edge data 'type'")
        hint = "Convert the types with .to(torch.int64)."
        require_array(types, TYPE_DTYPES, "[num_edges]", where=where, hint=hint, kind="integers")
        check_types(types, graph.num_edge_types, where=numbered(where, "edge"))
    elif graph.num_edge_types:
        raise InputError(
            f"edge types are missing: num_edge_types {graph.num_edge_types}, no edge data 'type' (in {_name(graph, 'edge data')})",
            hint="Pass edge data 'type', or num_edge_types 0.",
        )


def _check_features(graph: Graph) -> None:
    features, where = graph.features, _name(graph, "features")
    if features is None:
        return
    store = feature_store(features)
    if features.dtype not in FEATURE_DTYPES:
        raise InputError(
            f"array has the wrong form: {features.dtype} {[store.num_rows, *store.row_shape]}, expected "
            f"floating point [num_vertices, num_features] (in {where})",
            hint="Convert the features with .float(), one row per vertex.",
        )
    if is_sparse(features):
        _check_sparse_features(features, where)
        return
    if isinstance(features, Tensor) and features.layout != torch.strided:
        raise InputError(
            f"features have a layout that is not supported: {features.layout}, expected torch.strided or torch.sparse_csr (in {where})",
            hint="Convert them with .to_sparse_csr(), or .to_dense().",
        )
    for part, rows in read_pieces(store):
        check_finite(rows, "feature", where=numbered(where, "vertex", part.start))


def _check_sparse_features(features: Tensor, name: str) -> None:
    offsets, columns, values = features.crow_indices(), features.col_indices(), features.values()
    check_offsets(offsets, len(columns), "offsets of sparse features", where=name)
    if len(values) != len(columns):
        raise InputError(
            f"columns and values of sparse features differ in number: {len(columns)} columns and {len(values)} values (in {name})",
            hint="Make the features with torch.sparse_csr_tensor(..., check_invariants=True), which says where they differ.",
        )

    def where(at: int) -> str:
        vertex = int(torch.bucketize(offsets.new_tensor(at), offsets, right=True)) - 1
        return f"{name}, vertex {vertex}, column {int(columns[at])}"

    check_columns(columns, features.shape[1], where=where)
    check_finite(values, "feature", where=where)
