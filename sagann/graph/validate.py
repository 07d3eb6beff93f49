"""Every value of a graph checked before training, so that bad input never becomes a bad model.

The checks run in slices: memory-mapped arrays are read once, in order, and never copied whole. A message
names the first offending vertex or edge.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import torch
from torch import Tensor

from sagann.errors import InputError
from sagann.graph.feature_store import feature_store, read_slice
from sagann.graph.graph import SPLIT_NAMES, Graph
from sagann.graph.rows import is_sparse
from sagann.graph.topology import CHECKED_AT_ONCE, Topology

FEATURE_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
TYPE_DTYPES = (torch.uint8, torch.int16, torch.int32, torch.int64)


def validate_graph(graph: Graph) -> None:
    """Check every value of ``graph``, in O(edges + features).

    Raises:
        InputError: something is wrong; the message names the first offending vertex or edge.
    """
    graph.topology.validate()
    _check_boundaries(graph)
    _check_edge_data(graph)
    _check_features(graph)
    validate_labels(graph)


def validate_labels(graph: Graph) -> None:
    """Check the labels and splits of ``graph``, in O(vertices).

    Raises:
        InputError: something is wrong; the message names the first offending vertex.
    """
    _check_labels(graph)
    _check_splits(graph)


def _error(graph: Graph, what: str, value: str, where: str, fix: str) -> InputError:
    return InputError(what, value=value, where=f"{where} of graph '{graph.name}'", fix=fix)


def _slices(length: int, row_size: int = 1) -> Iterator[slice]:
    step = max(1, CHECKED_AT_ONCE // max(1, row_size))
    for first in range(0, length, step):
        yield slice(first, min(first + step, length))


def _first(wrong: Tensor, part: slice) -> int:
    """The first row of ``part`` in which anything is wrong."""
    rows = wrong if wrong.ndim == 1 else wrong.flatten(1).any(1)
    return int(part.start) + int(rows.nonzero()[0])


def _check_boundaries(graph: Graph) -> None:
    ptr = graph.graph_ptr
    if ptr is None:
        if graph.graph_names:
            raise _error(
                graph,
                "graph names without graph offsets",
                f"{len(graph.graph_names)} names, no graph_ptr",
                "graph_names",
                "Pass graph_ptr, or no names.",
            )
        return
    if ptr.dtype != torch.int64 or ptr.ndim != 1 or len(ptr) == 0:
        raise _error(
            graph,
            "graph offsets have the wrong form",
            f"{ptr.dtype} {list(ptr.shape)}, expected torch.int64 [num_graphs + 1]",
            "graph_ptr",
            "Convert the offsets with .to(torch.int64).",
        )
    if ptr[0] != 0 or ptr[-1] != graph.num_vertices:
        raise _error(
            graph,
            "graph offsets do not span the vertices",
            f"from {int(ptr[0])} to {int(ptr[-1])}, expected 0 to {graph.num_vertices}",
            "graph_ptr",
            "Pass offsets that start at 0 and end at the number of vertices.",
        )
    falling = ptr.diff() < 0
    if falling.any():
        at = int(falling.nonzero()[0])
        raise _error(
            graph,
            "graph offsets decrease",
            f"{int(ptr[at])} then {int(ptr[at + 1])} at graph {at}",
            "graph_ptr",
            "Number the vertices of one graph after those of the one before.",
        )
    if graph.graph_names and len(graph.graph_names) != graph.num_graphs:
        raise _error(
            graph,
            "graphs and their names differ in number",
            f"{len(graph.graph_names)} names, {graph.num_graphs} graphs",
            "graph_names",
            "Pass one name per graph, or none.",
        )
    _check_no_crossing(graph, ptr)


def _check_no_crossing(graph: Graph, ptr: Tensor) -> None:
    topology = graph.topology
    for part in _slices(topology.num_edges):
        src = topology.indices[part].long()
        dst = _destinations(topology, part)
        owner = torch.bucketize(dst, ptr, right=True) - 1
        crossing = (src < ptr[owner]) | (src >= ptr[owner + 1])
        if crossing.any():
            at = int(crossing.nonzero()[0])
            source_graph = int(torch.bucketize(src[at], ptr, right=True)) - 1
            raise _error(
                graph,
                "an edge joins two graphs",
                f"{int(src[at])} -> {int(dst[at])} at edge {part.start + at}, from graph {source_graph} "
                f"to graph {int(owner[at])}",
                "edges",
                "Remove the edge, or mend graph_ptr.",
            )


def _destinations(topology: Topology, part: slice) -> Tensor:
    """Destinations of a slice of the edges, without those of all edges."""
    bounds = torch.tensor([part.start, part.stop - 1], device=topology.device)
    first, last = (torch.bucketize(bounds, topology.indptr, right=True) - 1).tolist()
    offsets = topology.indptr[first : last + 2].clamp(part.start, part.stop)
    destinations = torch.arange(first, last + 1, device=topology.device)
    return torch.repeat_interleave(destinations, offsets.diff(), output_size=part.stop - part.start)


def _check_edge_data(graph: Graph) -> None:
    data = graph.topology.edge_data
    if "weight" in data and (not data["weight"].is_floating_point() or data["weight"].ndim != 1):
        raise _error(
            graph,
            "edge weights have the wrong form",
            f"{data['weight'].dtype} {list(data['weight'].shape)}, expected floating point [num_edges]",
            "edge data 'weight'",
            "Convert the weights with .float(), one per edge.",
        )
    for name, rows in data.items():
        if not rows.is_floating_point():
            continue
        for part in _slices(len(rows), rows[:1].numel()):
            wrong = ~torch.isfinite(rows[part])
            if wrong.any():
                at = _first(wrong, part)
                raise _error(
                    graph,
                    "edge data is not finite",
                    f"{_first_not_finite(rows[at])} at edge {at}",
                    f"edge data '{name}'",
                    "Replace NaN and infinite values.",
                )
    _check_types(graph, data.get("type"))


def _check_types(graph: Graph, types: Tensor | None) -> None:
    if types is None:
        if graph.num_edge_types:
            raise _error(
                graph,
                "edge types are missing",
                f"num_edge_types {graph.num_edge_types}, no edge data 'type'",
                "edge data",
                "Pass edge data 'type', or num_edge_types 0.",
            )
        return
    if types.dtype not in TYPE_DTYPES or types.ndim != 1:
        raise _error(
            graph,
            "edge types have the wrong form",
            f"{types.dtype} {list(types.shape)}, expected integers [num_edges]",
            "edge data 'type'",
            "Convert the types with .to(torch.int64).",
        )
    for part in _slices(len(types)):
        # Widened, because the number of types would wrap around in 8 or 16 bits.
        wide = types[part].long()
        wrong = (wide < 0) | (wide >= graph.num_edge_types)
        if wrong.any():
            at = _first(wrong, part)
            raise _error(
                graph,
                "edge type out of range",
                f"{int(types[at])} at edge {at}, but there are {graph.num_edge_types} edge types",
                "edge data 'type'",
                "Number the types from 0, or raise num_edge_types.",
            )


def _check_features(graph: Graph) -> None:
    features = graph.features
    if features is None:
        return
    store = feature_store(features)
    if features.dtype not in FEATURE_DTYPES or len(store.row_shape) != 1:
        raise _error(
            graph,
            "features have the wrong form",
            f"{features.dtype} {[store.num_rows, *store.row_shape]}, expected floating point [num_vertices, num_features]",
            "features",
            "Convert the features with .float(), one row per vertex.",
        )
    if is_sparse(features):
        _check_sparse_features(graph, features)
        return
    if isinstance(features, Tensor) and features.layout != torch.strided:
        raise _error(
            graph,
            "features have a layout that is not supported",
            f"{features.layout}, expected torch.strided or torch.sparse_csr",
            "features",
            "Convert them with .to_sparse_csr(), or .to_dense().",
        )
    for part in _slices(store.num_rows, store.row_shape[0]):
        rows = read_slice(store, part.start, part.stop)
        wrong = ~torch.isfinite(rows)
        if wrong.any():
            row, column = wrong.nonzero()[0].tolist()
            raise _not_finite(graph, float(rows[row, column]), part.start + row, column)


def _check_sparse_features(graph: Graph, features: Tensor) -> None:
    offsets, columns, values = features.crow_indices(), features.col_indices(), features.values()
    falling = offsets.diff() < 0
    if offsets[0] != 0 or offsets[-1] != len(columns) or falling.any() or len(columns) != len(values):
        raise _error(
            graph,
            "sparse features have broken offsets",
            f"from {int(offsets[0])} to {int(offsets[-1])}, {'decreasing, ' if falling.any() else ''}"
            f"expected 0 to {len(columns)}, never decreasing",
            "features",
            "Build the matrix again, with torch.sparse_csr_tensor(..., check_invariants=True).",
        )
    for part in _slices(len(values)):
        outside = (columns[part] < 0) | (columns[part] >= features.shape[1])
        if outside.any():
            at = _first(outside, part)
            raise _error(
                graph,
                "feature column out of range",
                f"{int(columns[at])} at vertex {_row_of(offsets, at)}, but there are {features.shape[1]} features",
                "features",
                "Number the columns from 0, or widen the matrix.",
            )
        wrong = ~torch.isfinite(values[part])
        if wrong.any():
            at = _first(wrong, part)
            raise _not_finite(graph, float(values[at]), _row_of(offsets, at), int(columns[at]))


def _row_of(offsets: Tensor, position: int) -> int:
    wanted = torch.tensor(position, dtype=offsets.dtype, device=offsets.device)
    return int(torch.bucketize(wanted, offsets, right=True)) - 1


def _first_not_finite(row: Tensor) -> float:
    row = row.flatten()
    return float(row[~torch.isfinite(row)][0])


def _not_finite(graph: Graph, value: float, vertex: int, column: int) -> InputError:
    return _error(
        graph,
        "a feature is not finite",
        f"{value} at vertex {vertex}, column {column}",
        "features",
        "Replace NaN and infinite values, with torch.nan_to_num for example.",
    )


def _check_labels(graph: Graph) -> None:
    labels = graph.labels
    if labels is None:
        return
    if graph.multi_label:
        fits = labels.dtype == torch.uint8 and labels.shape[1] == graph.num_classes
        expected = f"torch.uint8 [num_vertices, {graph.num_classes}] for several labels per vertex"
    else:
        fits = labels.dtype == torch.int64 and labels.ndim == 1
        expected = "torch.int64 [num_vertices]"
    if not fits:
        raise _error(
            graph,
            "labels have the wrong form",
            f"{labels.dtype} {list(labels.shape)}, expected {expected}",
            "labels",
            "Convert the labels, and state num_classes.",
        )
    low, limit = (0, 2) if graph.multi_label else (-1, graph.num_classes)
    for part in _slices(len(labels), labels[:1].numel()):
        wrong = (labels[part] < low) | (labels[part] >= limit)
        if wrong.any():
            at = _first(wrong, part)
            value = labels[at][(labels[at] < low) | (labels[at] >= limit)].flatten()[0]
            several = "several labels are 0 or 1" if graph.multi_label else f"labels go from -1 to {limit - 1}"
            raise _error(
                graph,
                "label outside the classes",
                f"{int(value)} at vertex {at}, but {several}",
                "labels",
                "Number the classes from 0, with -1 for unknown, and state num_classes."
                if not graph.multi_label
                else "Store 1 for each label that a vertex has, else 0.",
            )


def _check_splits(graph: Graph) -> None:
    for name, mask in graph.splits.items():
        if name not in SPLIT_NAMES:
            raise _error(
                graph,
                "unknown split",
                f"'{name}', expected {', '.join(SPLIT_NAMES)}",
                "splits",
                "Rename the split.",
            )
        if mask.dtype != torch.bool or mask.ndim != 1:
            raise _error(
                graph,
                "a split has the wrong form",
                f"{mask.dtype} {list(mask.shape)}, expected torch.bool [num_vertices]",
                f"split '{name}'",
                "Pass a mask, not vertex ids.",
            )
        if name == "train" and not mask.any():
            raise _error(
                graph,
                "the training split is empty",
                "0 vertices, at least 1 is needed",
                "split 'train'",
                "Split again, with random_split for example.",
            )
        if graph.labels is not None and not graph.multi_label:
            _check_split_is_labelled(graph, name, mask, graph.labels)
    for (name, mask), (other_name, other) in combinations(graph.splits.items(), 2):
        for part in _slices(len(mask)):
            both = mask[part] & other[part]
            if not both.any():
                continue
            raise _error(
                graph,
                "splits overlap",
                f"vertex {_first(both, part)} is in '{name}' and in '{other_name}', "
                f"{int((mask & other).sum())} in all",
                "splits",
                "Put every vertex into one split at most.",
            )


def _check_split_is_labelled(graph: Graph, name: str, mask: Tensor, labels: Tensor) -> None:
    for part in _slices(len(mask)):
        unlabelled = mask[part] & (labels[part] < 0)
        if not unlabelled.any():
            continue
        raise _error(
            graph,
            "a split holds vertices without a label",
            f"vertex {_first(unlabelled, part)} has label -1, {int((mask & (labels < 0)).sum())} in all",
            f"split '{name}'",
            "Leave vertices of unknown label out of every split.",
        )
