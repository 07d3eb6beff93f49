"""Contract: what a trained model expects of a graph, and the checks that a graph keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from sagann.errors import InputError, LayerError
from sagann.graph import Graph, Topology
from sagann.graph.validate import FEATURE_DTYPES


@dataclass(frozen=True, kw_only=True, slots=True)
class Contract:
    """What a model was made for; a new graph must offer the same.

    Example:
        >>> topology = Topology.from_coo(src=torch.tensor([0]), dst=torch.tensor([1]), num_src=2)
        >>> graph = Graph(topology=topology, features=torch.eye(2), labels=torch.tensor([0, 1]), num_classes=2)
        >>> Contract.of(graph).num_features
        2
    """

    num_features: int
    "Features per vertex; 0 where vertices have none."
    num_classes: int
    "Number of classes."
    multi_label: bool
    "Whether a vertex may have several labels."
    num_edge_types: int
    "Number of edge types; 0 where edges have none."
    num_vertices: int
    "Vertices of the training graph: a model without features has weights for just these."

    @classmethod
    def of(cls, graph: Graph) -> Contract:
        """What ``graph`` offers."""
        return cls(
            num_features=graph.num_features,
            num_classes=graph.num_classes,
            multi_label=graph.multi_label,
            num_edge_types=graph.num_edge_types,
            num_vertices=graph.num_vertices,
        )

    def to_json(self) -> dict[str, Any]:
        """Every field as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Contract:
        """The inverse of :meth:`to_json`.

        Raises:
            TypeError: a field is missing, unknown, or neither a count nor a truth value, as it should be.
        """
        for name, value in values.items():
            is_fit = isinstance(value, bool) if name == "multi_label" else type(value) is int and value >= 0
            if not is_fit:
                raise TypeError(f"{name} is {value!r:.40}")
        return cls(**values)

    def shape_only_graph(self) -> Graph:
        """A graph of these sizes without content, on which a model of the zoo can be built."""
        zeros = torch.zeros(1, dtype=torch.int64)
        n = self.num_vertices
        labels = torch.zeros((1, 1), dtype=torch.uint8).expand(n, self.num_classes) if self.multi_label else None
        return Graph(
            topology=Topology(indptr=zeros.expand(n + 1), indices=zeros[:0].int(), num_src=n, validate=False),
            features=torch.zeros((1, 1)).expand(n, self.num_features) if self.num_features else None,
            labels=zeros.expand(n) if labels is None else labels,
            num_classes=self.num_classes,
            num_edge_types=self.num_edge_types,
            name="shapes",
        )

    def check(self, graph: Graph) -> None:
        """Check that a model made under this contract can run on ``graph``.

        Raises:
            InputError: features or edge types differ.
        """
        where = f"graph '{graph.name}'"
        if graph.num_features != self.num_features:
            raise InputError(
                "the graph has other features than the model was trained on",
                value=f"{graph.num_features} features per vertex, the model expects {self.num_features}",
                where=where,
                fix="Prepare the graph's features as those of the training graph.",
            )
        if self.num_features == 0 and graph.num_vertices != self.num_vertices:
            raise InputError(
                "a model trained without features knows the vertices of its own graph only",
                value=f"{graph.num_vertices} vertices, the model has weights for {self.num_vertices}",
                where=where,
                fix="Use the training graph, or train on features.",
            )
        if graph.num_edge_types == 0 < self.num_edge_types:
            raise InputError(
                "the graph has no edge types, but the model was trained on some",
                value=f"0 edge types, the model expects {self.num_edge_types}",
                where=where,
                fix="Attach edge types, numbered as in the training graph.",
            )
        if graph.num_edge_types > self.num_edge_types:
            raise InputError(
                "the graph has more edge types than the model was trained on",
                value=f"{graph.num_edge_types} edge types, the model expects {self.num_edge_types}",
                where=where,
                fix="Number the edge types as in the training graph, and remove edges of unknown types.",
            )

    def check_labels(self, graph: Graph) -> None:
        """Check that ``graph`` has labels of the same classes.

        Raises:
            InputError: it has none, or others.
        """
        where = f"graph '{graph.name}'"
        if graph.labels is None:
            raise InputError(
                "the graph has no labels",
                value="labels are None",
                where=where,
                fix="Attach labels, or use predict, which needs none.",
            )
        if graph.multi_label != self.multi_label or graph.num_classes != self.num_classes:
            raise InputError(
                "the graph has other classes than the model was trained on",
                value=f"{_classes(graph.num_classes, graph.multi_label)}, "
                f"the model predicts {_classes(self.num_classes, self.multi_label)}",
                where=where,
                fix="Number the classes as in the training graph and set num_classes to the model's.",
            )

    def check_logits(self, logits: object, graph: Graph, model: str) -> Tensor:
        """The logits, if they are dense numbers, one row per vertex and one column per class, where the graph is.

        Raises:
            LayerError: they have another form.
        """
        expected = [graph.num_vertices, self.num_classes]
        device = graph.topology.device
        found = f"a {type(logits).__name__}"
        if isinstance(logits, Tensor):
            is_dense = logits.layout == torch.strided
            if (
                list(logits.shape) == expected
                and logits.dtype in FEATURE_DTYPES
                and is_dense
                and logits.device == device
            ):
                return logits
            found = f"{logits.dtype} {list(logits.shape)}"
            found += "" if is_dense else f" of layout {logits.layout}"
            found += "" if logits.device == device else f" on {logits.device}"
        raise LayerError(
            "the model must return one row of logits per vertex, with a column per class",
            value=f"{found}, expected a dense tensor of 16- to 64-bit floats {expected} on {device}",
            where=f"model {model}",
            fix=f"Let the last layer return such a tensor, with {self.num_classes} columns.",
        )


def _classes(number: int, multi_label: bool) -> str:
    return f"{number} {'multi-label' if multi_label else 'exclusive'} classes"
