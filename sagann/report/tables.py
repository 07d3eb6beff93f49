"""Tables of a dataset and of metrics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.table import Table
from torch import Tensor

from sagann.byte_size import format_bytes
from sagann.graph import Graph
from sagann.graph.feature_store import Features
from sagann.graph.rows import is_sparse
from sagann.report.terminal import facts_table, table
from sagann.train import METRICS, Metrics
from sagann.train.metrics import ERRORS

_MOST_SHOWN = 12


def metrics_table(metrics: Mapping[str, Metrics], *, title: str) -> Table:
    """A row per split, a column per metric. A metric that a split lacks is shown as '-'."""

    def shown(name: str, value: float | None) -> str:
        if value is None:
            return "-"
        # Where four decimals would show too little or too much of a number, it has an exponent.
        is_far = name in ERRORS and value and not 0.001 <= abs(value) < 1e6
        return f"{value:.3e}" if is_far else f"{value:.4f}"

    known = dict.fromkeys([*METRICS, *(name for found in metrics.values() for name in found)])
    names = [name for name in known if any(name in found for found in metrics.values())]
    rows = ((split, *(shown(name, found.get(name)) for name in names)) for split, found in metrics.items())
    return table(title, ["split", *names], rows)


def dataset_table(graph: Graph, *, path: Path) -> Table:
    """Describe ``graph``, for ``sagann data info``. Offsets, labels and splits are read; edges, features and targets are not."""
    rows = {
        "vertices": f"{graph.num_vertices:,}",
        "edges": f"{graph.num_edges:,} directed",
        "in-degrees": _degrees(graph),
        "edge data": _edge_data(graph),
        "features": _features(graph),
        "classes": _classes(graph),
    }
    if graph.labels is not None and not graph.multi_label:
        known = int((graph.labels >= 0).sum())
        rows["labelled"] = f"{known:,} of {graph.num_vertices:,} vertices"
    if graph.targets is not None:
        rows["targets"] = f"{graph.num_targets} per vertex, {_dtype(graph.targets)}"
    rows["splits"] = _splits(graph.splits)
    if graph.graph_ptr is not None:
        sizes = graph.graph_ptr.diff().tolist()
        names = graph.graph_names or [str(position) for position in range(len(sizes))]
        shown = [f"{name}: {size:,}" for name, size in zip(names[:_MOST_SHOWN], sizes, strict=False)]
        rows["graphs"] = f"{graph.num_graphs:,} (vertices {_listed(shown, len(sizes))})"
        if graph.graphs.tasks:
            rows["of graphs"] = " and ".join(graph.graphs.tasks.values())
        if graph.graph_splits:
            rows["splits of graphs"] = _splits(graph.graph_splits)
    if graph.original_ids is not None:
        rows["order"] = "renumbered; original ids are kept"
    if path.exists():
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        rows["on disk"] = format_bytes(sum(file.stat().st_size for file in files))
    return facts_table(graph.name, rows.items())


def _degrees(graph: Graph) -> str:
    degrees = graph.topology.in_degrees()
    if len(degrees) == 0:
        return "none"
    return (
        f"mean {graph.num_edges / graph.num_vertices:.2f}, median {int(degrees.median())}, "
        f"largest {int(degrees.max()):,}, {int((degrees == 0).sum()):,} vertices without in-edges"
    )


def _edge_data(graph: Graph) -> str:
    found = []
    for name, rows in graph.topology.edge_data.items():
        width = f" [{', '.join(str(size) for size in rows.shape[1:])}]" if rows.ndim > 1 else ""
        types = f", {graph.num_edge_types} types" if name == "type" else ""
        found.append(f"{name} ({_dtype(rows)}{width}{types})")
    return ", ".join(found) or "none"


def _features(graph: Graph) -> str:
    features = graph.features
    if features is None:
        return "none"
    if not is_sparse(features):
        return f"{graph.num_features:,}, dense {_dtype(features)}"
    count = features.values().numel()
    share = count / max(1, features.shape[0] * features.shape[1])
    return f"{graph.num_features:,}, sparse {_dtype(features)}, {count:,} non-zeros ({share:.2%})"


def _classes(graph: Graph) -> str:
    if graph.labels is None:
        return "no labels"
    # Of a damaged dataset, labels may be any numbers, and the number of classes huge: few are counted, one at a time.
    numbers = range(min(graph.num_classes, _MOST_SHOWN))
    columns = [graph.labels[:, number] if graph.multi_label else graph.labels == number for number in numbers]
    names = graph.class_names or [str(number) for number in numbers]
    shown = [f"{name}: {int(column.sum()):,}" for name, column in zip(names, columns, strict=False)]
    several = ", several per vertex" if graph.multi_label else ""
    return f"{graph.num_classes}{several} ({_listed(shown, graph.num_classes)})"


def _splits(splits: Mapping[str, Tensor]) -> str:
    return ", ".join(f"{name} {int(mask.sum()):,}" for name, mask in splits.items()) or "none"


def _listed(shown: list[str], count: int) -> str:
    return ", ".join([*shown, "..."] if count > len(shown) else shown)


def _dtype(rows: Features) -> str:
    return str(rows.dtype).removeprefix("torch.")
