"""Add, merge and remove edges, and normalise weights and features: pure functions from Graph to Graph.

Self-loops, weights and dense features are made slab by slab, into arrays that :mod:`sagann.graph.large_arrays` makes; the other functions
hold all edges in memory. Vertices keep their ids, so features, labels, splits and graph boundaries are shared with the input.

In-edges of results ascend by source. Edges with the same ends keep their order, and added edges follow them; functions that reverse or merge
edges sort edges with the same ends by type. Edge data of added and merged edges:

===================  ===================  =========================  =========================
function             ``weight``           ``type``                   other edge data
===================  ===================  =========================  =========================
add_self_loops       1                    a new type, the highest    the value in ``fill``
coalesce             sum of the weights   equal in merged edges      that of the first edge
symmetrise           same as the edge     same as the edge           same as the edge
add_inverse_edges    same as the edge     type + num_edge_types      same as the edge
===================  ===================  =========================  =========================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor

from sagann.errors import InputError, require_choice, require_type
from sagann.graph.checks import first_of_equals, slices, wrong_form
from sagann.graph.feature_store import feature_store, read_slice
from sagann.graph.graph import Graph
from sagann.graph.large_arrays import empty_array, slabs
from sagann.graph.rows import csr_tensor, id_dtype, is_sparse, offsets_of
from sagann.graph.topology import Topology, destinations
from sagann.graph.validate import FEATURE_DTYPES

Normalisation = Literal["symmetric", "row"]


def add_self_loops(
    graph: Graph, *, fill: Mapping[str, float] | None = None, leave_out: bool = False, doubles: bool = False
) -> Graph:
    """Add the edge v -> v to every vertex that has none.

    Existing self-loops and their data stay (as in PyG's ``add_remaining_self_loops``, but several loops of one vertex
    are not merged). In a graph with edge types the new loops get the new type ``num_edge_types``, and
    ``num_edge_types`` grows by one if any loop is added.

    Args:
        graph: any graph.
        fill: values of the new loops' edge data, by name; 'weight' defaults to 1, 'type' to the new type.
        leave_out: drop edge data that has no value for the new loops, instead of raising an error. If no loop is added,
            nothing is dropped.
        doubles: add another one to a vertex that has a self-loop (as PyG's ``add_self_loops``).
    Raises:
        InputError: the graph has edge data without a value for the new loops.
    Example:
        >>> topology = Topology.from_coo(src=torch.tensor([0, 1]), dst=torch.tensor([1, 1]), num_src=2)
        >>> add_self_loops(Graph(topology=topology)).topology.indices.tolist()
        [0, 0, 1]
    """
    hint = "Pass numbers by the names of edge data, as {'attr': 0}."
    require_type(fill, Mapping, where="add_self_loops, fill", hint=hint, optional=True)
    topology = graph.topology
    missing = torch.ones(graph.num_vertices, dtype=torch.bool, device=topology.device)
    num_before = torch.empty(graph.num_vertices, dtype=torch.int64, device=topology.device)
    for rows, edges in slabs(topology.indptr):
        sources, dst = topology.indices[edges], destinations(topology, rows, edges)
        missing[sources[sources == dst].long()] = doubles
        below = dst[sources < dst] - rows.start
        num_before[rows] = torch.bincount(below, minlength=rows.stop - rows.start)
    if not missing.any():
        return graph

    # An edge moves up by the number of loops added to lower destinations, and by one more if its source is above its
    # destination, because the loop stands before this edge.
    shift = offsets_of(missing)
    indptr = topology.indptr + shift
    num_edges = topology.num_edges + int(shift[-1])

    def insert(rows: Tensor, loops: float | None, dtype: torch.dtype) -> Tensor:
        """The rows of all edges and new loops. A loop's row is ``loops``, or the id of its vertex for None."""
        merged = empty_array((num_edges, *rows.shape[1:]), dtype, rows.device)
        for vertices, edges in slabs(topology.indptr):
            into = merged[int(indptr[vertices.start]) : int(indptr[vertices.stop])]
            new = torch.arange(vertices.start, vertices.stop, device=rows.device)[missing[vertices]]
            loop_at = indptr[new] + num_before[new] - indptr[vertices.start]
            is_edge = torch.ones(len(into), dtype=torch.bool, device=rows.device)
            is_edge[loop_at] = False
            into[is_edge] = rows[edges].to(dtype)
            into[loop_at] = new.to(dtype) if loops is None else loops
        return merged

    values = {"weight": 1.0, "type": float(graph.num_edge_types), **(fill or {})}
    kept = {name: rows for name, rows in topology.edge_data.items() if name in values}
    for name in topology.edge_data:
        if name not in kept and not leave_out:
            raise InputError(
                f"edge data has no value for new self-loops: {int(shift[-1])} vertices without a self-loop (in "
                f"edge data '{name}' of graph '{graph.name}')",
                hint=f"Pass a value, fill={{'{name}': 0}}, or drop the edge data, leave_out=True.",
            )
    new_topology = Topology(
        indptr=indptr,
        indices=insert(topology.indices, None, topology.indices.dtype),
        num_src=topology.num_src,
        edge_data={
            name: insert(rows, values[name], _wide_types(rows[:0]).dtype if name == "type" else rows.dtype)
            for name, rows in kept.items()
        },
        validate=False,
    )
    num_edge_types = graph.num_edge_types
    if "type" in topology.edge_data:
        num_edge_types = max(num_edge_types, int(values["type"]) + 1)
    return replace(graph, topology=new_topology, num_edge_types=num_edge_types)


def remove_self_loops(graph: Graph) -> Graph:
    """Remove every edge v -> v."""
    loops = graph.topology.indices == graph.topology.edge_dst()
    return graph.with_topology(keep_edges(graph.topology, ~loops)) if loops.any() else graph


def coalesce(graph: Graph) -> Graph:
    """Merge multi-edges of the same type; in-edges of the result ascend by source, then by type.

    Weights are summed. Other edge data is that of the first of the merged edges.

    Example:
        >>> topology = Topology.from_coo(
        ...     src=torch.tensor([1, 0, 1]), dst=torch.tensor([0, 0, 0]), num_src=2,
        ...     edge_data={"weight": torch.tensor([1.0, 2.0, 3.0])},
        ... )
        >>> merged = coalesce(Graph(topology=topology)).topology
        >>> merged.indices.tolist(), merged.edge_data["weight"].tolist()
        ([0, 1], [2.0, 4.0])
    """
    given = graph.topology
    topology = _sorted(given.indices, given.edge_dst(), given.edge_data, given.num_src)
    first = _first_edges(topology)
    if first.all():
        return graph.with_topology(topology)
    merged = keep_edges(topology, first)
    weight = topology.edge_data.get("weight")
    if weight is not None:
        group = first.cumsum(0).sub_(1)
        merged = merged.with_edge_data(
            weight=torch.zeros_like(merged.edge_data["weight"]).index_add_(0, group, weight)
        )
    return graph.with_topology(merged)


def symmetrise(graph: Graph) -> Graph:
    """Coalesce, and add the reverse of every edge that has none.

    A reverse edge has the weight and the type of the edge that it mirrors, and only an edge of the same type counts as the reverse. To give
    reverse edges new types, use :func:`add_inverse_edges`.
    """
    forward = coalesce(graph).topology
    # All edges stand before all mirror images, and sorting is stable. So of several equal edges, the first is an edge
    # of the graph, if the graph has one.
    both = _with_reversed(forward, forward.edge_data)
    return graph.with_topology(keep_edges(both, _first_edges(both)))


def add_inverse_edges(graph: Graph) -> Graph:
    """Add to every edge of type t a reverse edge of type t + ``num_edge_types``; then ``num_edge_types`` doubles.

    Relational models such as R-GCN pass messages both ways by such edges. No edges are merged; a self-loop gets an
    inverse edge too.

    Raises:
        InputError: the graph has no edge types.
    References:
        Schlichtkrull et al., Modeling Relational Data with Graph Convolutional Networks, ESWC 2018, Sec. 2.
    """
    types = graph.topology.edge_data.get("type")
    if types is None or graph.num_edge_types == 0:
        raise InputError(
            f"inverse edges need edge types: num_edge_types {graph.num_edge_types} (in graph '{graph.name}')",
            hint="Use symmetrise for a graph without edge types.",
        )
    wide = _wide_types(types)
    inverse = {**graph.topology.edge_data, "type": wide + graph.num_edge_types}
    topology = _with_reversed(graph.topology.with_edge_data(type=wide), inverse)
    return replace(graph, topology=topology, num_edge_types=2 * graph.num_edge_types)


def _wide_types(types: Tensor) -> Tensor:
    # Types may be stored in 8 or 16 bits, which new types might exceed.
    return types if types.dtype in (torch.int32, torch.int64) else types.to(torch.int32)


def keep_edges(topology: Topology, keep: Tensor, *, with_ids: bool = False) -> Topology:
    """The edges that a mask, bool [num_edges], is true for, with their data; ``with_ids`` also with their ids in ``topology``."""
    ids = keep.nonzero().squeeze(1)
    return Topology(
        # An edge's new id is the number of kept edges before it.
        indptr=torch.searchsorted(ids, topology.indptr),
        indices=topology.indices[ids],
        num_src=topology.num_src,
        edge_data={name: rows[ids] for name, rows in topology.edge_data.items()},
        edge_ids=ids.to(id_dtype(topology.num_edges)) if with_ids else None,
        validate=False,
    )


def _with_reversed(topology: Topology, reversed_data: Mapping[str, Tensor]) -> Topology:
    src, dst = topology.indices, topology.edge_dst()
    both = {name: torch.cat([rows, reversed_data[name]]) for name, rows in topology.edge_data.items()}
    return _sorted(torch.cat([src, dst]), torch.cat([dst, src]), both, topology.num_src)


def _sorted(src: Tensor, dst: Tensor, edge_data: Mapping[str, Tensor], num_vertices: int) -> Topology:
    """Sort edges by destination, then source, then type; edges equal in all three keep their order."""
    types = edge_data.get("type")
    if types is not None:
        # from_coo sorts stably by the ends, so edges with the same ends keep the order of their types.
        order = torch.sort(types, stable=True).indices
        src, dst, edge_data = src[order], dst[order], {name: rows[order] for name, rows in edge_data.items()}
    return Topology.from_coo(src=src, dst=dst, num_src=num_vertices, edge_data=edge_data)


def _first_edges(topology: Topology) -> Tensor:
    """bool [num_edges]: the first of each run of edges with the same ends and type."""
    keys = [topology.edge_dst(), topology.indices]
    return first_of_equals(keys + [rows for name, rows in topology.edge_data.items() if name == "type"])


def normalise(
    graph: Graph, how: Normalisation, *, name: str = "weight", dtype: torch.dtype = torch.float32
) -> Graph:
    """Store normalised edge weights as ``topology.edge_data[name]``. Sums are taken in float64; a vertex of degree 0 has the factor 0.

    With ``w`` the weight of an edge (1 without weights) and ``d`` the weighted in-degree:

    - symmetric: ``w / sqrt(d[dst] * d[src])``, the GCN weights for a graph that has its self-loops;
    - row: ``w / d[dst]``, so that a weighted sum over in-edges is a mean.

    Args:
        graph: any graph; add self-loops first if the model needs them.
        how: "symmetric" or "row".
        name: name of the edge data to store. The weights to normalise are always the edge data 'weight'.
        dtype: dtype of the stored weights.
    Raises:
        InputError: ``how`` is unknown, or a weighted in-degree is negative ("symmetric").
    References:
        Kipf and Welling, Semi-Supervised Classification with Graph Convolutional Networks, ICLR 2017, Sec. 2.
    Example:
        >>> topology = Topology.from_coo(src=torch.tensor([0, 1, 1]), dst=torch.tensor([0, 0, 1]), num_src=2)
        >>> normalise(Graph(topology=topology), "row").topology.edge_data["weight"]
        tensor([0.5000, 0.5000, 1.0000])
    """
    require_choice(how, get_args(Normalisation), what="unknown normalisation", where="normalise")
    require_choice(dtype, FEATURE_DTYPES, what="weights cannot be of this type", where="normalise, dtype")
    topology = graph.topology
    degrees = weighted_in_degrees(topology)
    if how == "symmetric" and (degrees < 0).any():
        vertex = int((degrees < 0).nonzero()[0])
        raise InputError(
            f"symmetric normalisation of a negative degree: the weights into vertex {vertex} sum to "
            f"{float(degrees[vertex]):g}, at least 0 is needed (in graph '{graph.name}')",
            hint="Use 'row', or weights that are not negative.",
        )
    factor = degrees.rsqrt() if how == "symmetric" else degrees.reciprocal()
    factor[degrees == 0] = 0.0
    given = topology.edge_data.get("weight")
    stored = empty_array((topology.num_edges,), dtype, topology.device)
    for rows, edges in slabs(topology.indptr):
        degrees_in = topology.indptr[rows.start : rows.stop + 1].diff()
        weight = torch.repeat_interleave(factor[rows], degrees_in)
        if how == "symmetric":
            weight *= factor[topology.indices[edges]]
        if given is not None:
            weight *= given[edges]
        stored[edges] = weight
    weighted = topology.with_edge_data(**{name: stored})
    is_product = how == "symmetric" and given is None and topology.num_src == topology.num_dst
    return graph.with_topology(weighted.marked_by_degree(name) if is_product else weighted)


def weighted_in_degrees(topology: Topology) -> Tensor:
    """Sum the weights of every destination's in-edges (their number, without weights): float64 [num_dst]."""
    weight = topology.edge_data.get("weight")
    if weight is None:
        return topology.in_degrees().double()
    if weight.ndim != 1:
        hint = "Take the only column, weight.squeeze(1)."
        raise wrong_form(weight, "a number per edge, [num_edges]", where="edge data 'weight'", hint=hint)
    degrees = torch.zeros(topology.num_dst, dtype=torch.float64, device=topology.device)
    for rows, edges in slabs(topology.indptr):
        degrees.index_add_(0, destinations(topology, rows, edges), weight[edges].double())
    return degrees


def normalise_features(graph: Graph) -> Graph:
    r"""Divide each vertex's features by the sum of their magnitudes: :math:`x_v / \sum_f |x_{vf}|`.

    A row of non-negative features then sums to 1; a row of zeros stays zero. Sums are taken in float64.

    Args:
        graph: features dense [num_vertices, F] or ``torch.sparse_csr``, of any floating-point dtype.
    Returns:
        the graph with new features, of the same layout and dtype; a feature store becomes a tensor.
    Raises:
        InputError: the graph has no features, or no floating-point ones.
    References:
        Kipf and Welling, ICLR 2017, Sec. 5.2: "row-normalize input feature vectors", as their code does it.
        PyTorch Geometric's ``NormalizeFeatures`` is equal where all features are non-negative, the smallest is
        0, and every row sums to at least 1; it shifts features by their minimum and leaves smaller rows unscaled.
    Example:
        >>> from sagann.graph import Topology
        >>> topology = Topology.from_coo(src=torch.tensor([0]), dst=torch.tensor([1]), num_src=2)
        >>> graph = Graph(topology=topology, features=torch.tensor([[1.0, 3.0], [0.0, 0.0]]))
        >>> normalise_features(graph).features.tolist()
        [[0.25, 0.75], [0.0, 0.0]]
    """
    features = graph.features
    if features is None:
        raise InputError(
            f"there are no features to normalise: features are None (in graph '{graph.name}')",
            hint="Leave normalise_features (--normalise-features) out.",
        )
    require_choice(features.dtype, FEATURE_DTYPES, what="features of another type", where=f"graph '{graph.name}'")
    if is_sparse(features):
        offsets, columns, values = features.crow_indices(), features.col_indices(), features.values()
        if len(values):
            wide = values.double()
            sums = torch.segment_reduce(wide.abs(), "sum", offsets=offsets.long())
            divisors = torch.repeat_interleave(_divisors(sums), offsets.diff().long(), output_size=len(values))
            values = (wide / divisors).to(values.dtype)
        return replace(graph, features=csr_tensor(offsets, columns, values, num_columns=features.shape[1]))
    store = feature_store(features)
    result = empty_array((store.num_rows, *store.row_shape), store.dtype, graph.topology.device)
    # In slices, because the features may be in a file, and their float64 copy must not be in memory as a whole.
    for part in slices(store.num_rows, store.row_shape[0]):
        rows = read_slice(store, part.start, part.stop).double()
        result[part] = rows / _divisors(rows.abs().sum(dim=1, keepdim=True))
    return replace(graph, features=result)


def _divisors(sums: Tensor) -> Tensor:
    """The sums, and 1 where one is 0."""
    return torch.where(sums > 0, sums, 1.0)
