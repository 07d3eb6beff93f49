"""Choose and renumber vertices: pure functions from Graph to Graph.

All functions do one operation. Vertex i of the result is vertex ``order[i]`` of the input, with its features, label,
targets and splits. The result has the edges between chosen vertices, with their data; in-edges ascend by source.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sagann.errors import InputError
from sagann.graph.checks import require_distinct
from sagann.graph.feature_store import Features, read_rows
from sagann.graph.graph import Graph
from sagann.graph.rows import gather_ranges, offsets_of, take_rows
from sagann.graph.topology import Topology


def subgraph(graph: Graph, vertices: Tensor) -> Graph:
    """Take the subgraph that ``vertices`` induce; vertex i of it is ``vertices[i]``.

    The subgraph has no original ids, since some of them may be missing.

    Args:
        graph: any graph.
        vertices: int64 [M], distinct ids. If the graph holds several graphs, the vertices of each must be consecutive
            in ``vertices``. A graph without a chosen vertex disappears; one with some keeps its name and its answers.
    Raises:
        InputError: an id is out of range or repeated, or graphs are mixed.
    Example:
        >>> topology = Topology.from_coo(src=torch.tensor([0, 1, 2]), dst=torch.tensor([1, 2, 0]), num_src=3)
        >>> part = subgraph(Graph(topology=topology), torch.tensor([2, 1]))
        >>> part.topology.indptr.tolist(), part.topology.indices.tolist()
        ([0, 1, 1], [1])
    """
    require_distinct(vertices, graph.num_vertices, where=f"vertices of graph '{graph.name}'")
    require_no_links(graph, "vertices are chosen or renumbered")
    topology = graph.topology
    indptr, indices, edges = edges_among(topology, vertices, new_ids(topology, vertices))
    return replace(
        graph,
        **fields_of_graphs(graph, vertices),
        topology=Topology(
            indptr=indptr,
            indices=indices,
            num_src=len(vertices),
            edge_data={name: rows[edges] for name, rows in topology.edge_data.items()},
            validate=False,
        ),
        features=_rows_of(graph.features, vertices),
        **graph.vertices.mapped(lambda rows: rows[vertices], count=len(vertices)).fields(),
        original_ids=None,
    )


def new_ids(topology: Topology, vertices: Tensor) -> Tensor:
    """The place of each vertex among the chosen ones; -1 for the others."""
    ids = torch.full((topology.num_dst,), -1, dtype=topology.indices.dtype, device=topology.device)
    ids[vertices] = torch.arange(len(vertices), dtype=ids.dtype, device=topology.device)
    return ids


def edges_among(topology: Topology, vertices: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The in-edges of ``vertices`` from vertices with new ids: offsets, sources by new id, which ascend, and old ids of the edges."""
    # Imported here: Numba takes longer to import than all else of `import sagann` together.
    from sagann.graph.row_sort import sort_rows

    offsets, edges = gather_ranges(topology.indptr, vertices)
    indices = ids[topology.indices[edges].long()]
    indptr, keep = offsets, indices >= 0
    if not keep.all():
        edges, indices, indptr = edges[keep], indices[keep], offsets_of(keep)[offsets]
    sort_rows(indptr, indices, edges)
    return indptr, indices, edges


def _rows_of(features: Features | None, vertices: Tensor) -> Tensor | None:
    if features is None or isinstance(features, Tensor):
        return None if features is None else take_rows(features, vertices)
    return read_rows(features, vertices)


def relabel(graph: Graph, order: Tensor) -> Graph:
    """Renumber the vertices: vertex i of the result is vertex ``order[i]`` of ``graph``.

    The result knows the ids that its vertices had before any renumbering: its ``original_ids``.

    Args:
        graph: any graph.
        order: int64 [num_vertices], a permutation of the vertex ids.
    Raises:
        InputError: ``order`` is not a permutation, or mixes the vertices of several graphs.
    """
    check_order(graph, order)
    order = order.cpu()
    original_ids = order if graph.original_ids is None else graph.original_ids[order]
    return replace(subgraph(graph, order.to(graph.topology.device)), original_ids=original_ids)


def original_order(graph: Graph) -> Tensor:
    """The vertices in the order of their original ids: puts results of a renumbered graph back.

    Returns:
        int64 [num_vertices], on the CPU: vertex ``original_order(graph)[i]`` had the id i before any renumbering.
    Example:
        >>> topology = Topology.from_coo(src=torch.tensor([0]), dst=torch.tensor([1]), num_src=3)
        >>> given = Graph(topology=topology, labels=torch.tensor([5, 6, 7]), num_classes=8)
        >>> renumbered = relabel(given, torch.tensor([2, 0, 1]))
        >>> renumbered.labels.tolist(), renumbered.labels[original_order(renumbered)].tolist()
        ([7, 5, 6], [5, 6, 7])
    """
    vertices = torch.arange(graph.num_vertices)
    if graph.original_ids is None:
        return vertices
    order = torch.empty_like(vertices)
    order[graph.original_ids] = vertices
    return order


def check_order(graph: Graph, order: Tensor) -> None:
    """Check that ``order``, int64 [num_vertices], is a permutation of the vertices that mixes no graphs."""
    require_distinct(order, graph.num_vertices, where=f"order of graph '{graph.name}'")
    if len(order) != graph.num_vertices:
        raise InputError(
            f"vertex order is not a permutation: {len(order)} ids, {graph.num_vertices} vertices (in order of graph '{graph.name}')",
            hint="Pass every vertex once, or take a subgraph.",
        )
    fields_of_graphs(graph, order)


def require_no_links(graph: Graph, doing: str) -> None:
    """Refuse a graph whose links were held out; ``doing`` says what would lose them, for the error."""
    if graph.links is not None:
        raise InputError(
            f"{doing} before links are held out: {graph.links.num_links} links are held out (in graph '{graph.name}')",
            hint="Begin from the graph as it was before, and pass the result to sagann.sampling.hold_out_links.",
        )


def fields_of_graphs(graph: Graph, vertices: Tensor) -> dict[str, Any]:
    """The fields of a Graph about the graphs of chosen vertices, in the order of the vertices; refuse mixed graphs."""
    if graph.graph_ptr is None:
        return {}
    owner = torch.bucketize(vertices.cpu(), graph.graph_ptr.cpu(), right=True) - 1
    runs, lengths = torch.unique_consecutive(owner, return_counts=True)
    if len(runs.unique()) != len(runs):
        counts = torch.bincount(runs)
        mixed = int((counts > 1).nonzero()[0])
        raise InputError(
            f"vertices of several graphs are mixed: the vertices of graph {mixed} are in {int(counts[mixed])} "
            f"places (in vertices of graph '{graph.name}')",
            hint="Keep the vertices of each graph together, or drop graph_ptr first.",
        )

    return {
        "graph_ptr": offsets_of(lengths),
        "graph_names": tuple(graph.graph_names[g] for g in runs.tolist()) if graph.graph_names else (),
        **graph.graphs.mapped(lambda rows: rows[runs.to(rows.device)], count=len(runs)).fields(),
    }
