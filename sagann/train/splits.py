"""Splits: the vertices that a model is trained on, and measured on. A split without a vertex counts as absent."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from sagann.graph import SPLIT_NAMES, Graph
from sagann.train.metrics import METRICS, Metrics, compute_metrics


def present_splits(splits: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The masks that hold a vertex, in the order train, val, test."""
    return {name: splits[name] for name in SPLIT_NAMES if name in splits and bool(splits[name].any())}


def most_measured(graph: Graph) -> int:
    """Number of vertices that are measured together: the largest split, or all where there is no split."""
    counts = (int(mask.count_nonzero()) for mask in present_splits(graph.splits).values())
    return max(counts, default=graph.num_vertices)


def labelled_rows(graph: Graph, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The labelled vertices of a split: ids int64 [n], and their labels [n] or [n, C]."""
    assert graph.labels is not None
    known = mask if graph.multi_label else mask & (graph.labels >= 0)
    rows = known.nonzero().squeeze(1)
    return rows, graph.labels.index_select(0, rows)


def evaluate_splits(
    logits: Tensor, graph: Graph, *, splits: Collection[str] = SPLIT_NAMES, names: Collection[str] = METRICS
) -> dict[str, Metrics]:
    """Metrics ``names`` of each of ``splits`` that the graph has; of one split 'all' where it has no splits at all."""
    masks = present_splits(graph.splits)
    if not masks:
        masks = {"all": torch.ones(graph.num_vertices, dtype=torch.bool, device=logits.device)}
    found: dict[str, Metrics] = {}
    for name, mask in masks.items():
        if name in splits or name == "all":
            rows, labels = labelled_rows(graph, mask)
            found[name] = compute_metrics(logits, labels, multi_label=graph.multi_label, names=names, rows=rows)
    return found
