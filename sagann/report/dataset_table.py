"""A dataset as a table, for ``sagann data info``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from rich.table import Table

from sagann.byte_size import format_bytes
from sagann.graph import Graph
from sagann.graph.rows import is_sparse
from sagann.report.terminal import facts_table

_MOST_SHOWN = 12


def dataset_table(graph: Graph, *, class_names: Sequence[str], path: Path) -> Table:
    """Describe ``graph``. Offsets, labels and splits are read, edges and features are not.

    Args:
        graph: any graph.
        class_names: a name for each class; if empty, classes are numbered.
        path: the dataset, for its size on disk.
    """
    table = facts_table(graph.name)
    table.add_row("vertices", f"{graph.num_vertices:,}")
    table.add_row("edges", f"{graph.num_edges:,} directed")
    table.add_row("in-degrees", _degrees(graph))
    table.add_row("edge data", _edge_data(graph))
    table.add_row("features", _features(graph))
    table.add_row("classes", _classes(graph, class_names))
    if graph.labels is not None and not graph.multi_label:
        known = int((graph.labels >= 0).sum())
        table.add_row("labelled", f"{known:,} of {graph.num_vertices:,} vertices")
    sizes = [f"{name} {int(mask.sum()):,}" for name, mask in graph.splits.items()]
    table.add_row("splits", ", ".join(sizes) or "none")
    if graph.graph_ptr is not None:
        table.add_row("graphs", _graphs(graph))
    if path.exists():
        table.add_row("on disk", format_bytes(_size_bytes(path)))
    return table


def _degrees(graph: Graph) -> str:
    degrees = graph.topology.in_degrees()
    if len(degrees) == 0:
        return "none"
    mean = graph.num_edges / graph.num_vertices
    without = int((degrees == 0).sum())
    return (
        f"mean {mean:.2f}, median {int(degrees.median())}, largest {int(degrees.max()):,}, "
        f"{without:,} vertices without in-edges"
    )


def _edge_data(graph: Graph) -> str:
    found = []
    for name, rows in graph.topology.edge_data.items():
        width = f" [{', '.join(str(size) for size in rows.shape[1:])}]" if rows.ndim > 1 else ""
        types = f", {graph.num_edge_types} types" if name == "type" else ""
        found.append(f"{name} ({_dtype(rows.dtype)}{width}{types})")
    return ", ".join(found) or "none"


def _features(graph: Graph) -> str:
    features = graph.features
    if features is None:
        return "none"
    if is_sparse(features):
        count = features.values().numel()
        share = count / max(1, features.shape[0] * features.shape[1])
        return f"{graph.num_features:,}, sparse {_dtype(features.dtype)}, {count:,} non-zeros ({share:.2%})"
    return f"{graph.num_features:,}, dense {_dtype(features.dtype)}"


def _classes(graph: Graph, class_names: Sequence[str]) -> str:
    if graph.labels is None:
        return "no labels"
    # Counted one class at a time, because labels of a damaged dataset may be any numbers.
    numbers = range(min(graph.num_classes, _MOST_SHOWN))
    columns = [graph.labels[:, number] if graph.multi_label else graph.labels == number for number in numbers]
    # Only shown classes get a name: the number of classes of a damaged dataset may be huge.
    names = class_names or [str(number) for number in numbers]
    shown = [f"{name}: {int(column.sum()):,}" for name, column in zip(names, columns, strict=False)]
    several = ", several per vertex" if graph.multi_label else ""
    return f"{graph.num_classes}{several} ({_listed(shown, graph.num_classes)})"


def _graphs(graph: Graph) -> str:
    assert graph.graph_ptr is not None
    sizes = graph.graph_ptr.diff().tolist()
    names = graph.graph_names or [str(position) for position in range(len(sizes))]
    shown = [f"{name}: {size:,}" for name, size in zip(names[:_MOST_SHOWN], sizes, strict=False)]
    return f"{graph.num_graphs:,} (vertices {_listed(shown, len(sizes))})"


def _listed(shown: list[str], count: int) -> str:
    return ", ".join([*shown, "..."] if count > len(shown) else shown)


def _size_bytes(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
