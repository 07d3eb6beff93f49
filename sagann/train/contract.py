"""Contract: the sizes that a trained model expects of a graph, and the checks of a graph and of logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sagann.errors import InputError, LayerError, listed, shown
from sagann.graph import Graph, MeasuredLinks, Topology, for_task
from sagann.graph.checks import form_of
from sagann.graph.task import (
    LINK_TASK,
    OF_GRAPHS,
    TO_HOLD_OUT,
    answered,
    answers_of,
    is_of_graphs,
    is_of_links,
    without_others,
)
from sagann.graph.validate import FEATURE_DTYPES
from sagann.ranges import RANGES
from sagann.storage.json_fields import as_texts


@dataclass(frozen=True, kw_only=True, slots=True)
class Contract:
    """The sizes of the graph that a model was made for. A new graph must have the same."""

    num_features: int
    "Number of features per vertex; 0 where vertices have no features."
    num_classes: int
    "Number of classes; 0 for a regression."
    multi_label: bool
    "Whether a vertex may have several labels."
    num_edge_types: int
    "Number of edge types; 0 where edges have no types."
    num_vertices: int
    "Number of vertices of the training graph. A model for a graph without features has weights for each of them."
    num_targets: int = 0
    "Number of targets per vertex of a regression; 0 for a classification."
    edge_dim: int = 0
    "Number of features per edge of the training graph; 0 where edges have none."
    of_graphs: bool = False
    "Whether the model learns answers of whole graphs: a label, or targets, for each graph of several in one."
    of_links: bool = False
    "Whether the model learns which pairs of vertices are joined."
    feature_names: tuple[str, ...] = ()
    "Names of the features of the training graph, or empty."

    @property
    def task(self) -> str:
        """The task of the model, one of :data:`sagann.graph.TASKS` or :data:`sagann.graph.GRAPH_TASKS`, or :data:`sagann.graph.LINK_TASK`."""
        return OF_GRAPHS + self.kind if self.of_graphs else self.kind

    @property
    def noun(self) -> str:
        """What the model is measured on: 'vertex', 'graph' or 'link'."""
        if self.of_links:
            return "link"
        return "graph" if self.of_graphs else "vertex"

    @property
    def kind(self) -> str:
        """What the model learns about each vertex, or each graph, one of :data:`sagann.graph.TASKS`; or :data:`sagann.graph.LINK_TASK`."""
        if self.of_links:
            return LINK_TASK
        if self.num_targets:
            return "regression"
        return "multi-label" if self.multi_label else "classification"

    @property
    def num_outputs(self) -> int:
        """Number of outputs of the model per vertex, or per graph: one for each class, or for each target. Rows that score links have any width: 0."""
        return self.num_targets or self.num_classes

    @classmethod
    def of(cls, graph: Graph) -> Contract:
        """The contract that ``graph`` keeps. A graph with answers for several tasks is an InputError."""
        graph = for_task(graph)
        found = {
            name: getattr(graph, name)
            for name in ("num_features", "num_edge_types", "num_vertices", "edge_dim", "feature_names")
        }
        if is_of_links(graph):
            return cls(**found, num_classes=0, multi_label=False, of_links=True)
        found |= {name: getattr(answered(graph), name) for name in ("num_classes", "multi_label", "num_targets")}
        return cls(**found, of_graphs=is_of_graphs(graph))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Contract:
        """A contract of the values of its fields; a TypeError where one is missing, unknown, or of the wrong type."""
        sizes = dict(values)
        names = sizes.pop("feature_names", ())
        names = as_texts([*names] if isinstance(names, tuple) else names)
        for name, value in sizes.items():
            is_flag = name in ("multi_label", "of_graphs", "of_links")
            is_fit = isinstance(value, bool) if is_flag else name in RANGES and value in RANGES[name]
            if not is_fit:
                raise TypeError(f"{name} is {value!r:.40}, expected {RANGES.get(name, 'true or false')}")
        found = cls(**sizes, feature_names=names)
        if found.of_links and (found.of_graphs or found.multi_label or found.num_classes or found.num_targets):
            raise TypeError("of_links is true, and there are answers of another task")
        return found

    def shape_only_graph(self) -> Graph:
        """A graph of these sizes without content, on which a model of the zoo can be built."""
        zeros = torch.zeros(1, dtype=torch.int64)
        n = self.num_vertices
        num_rows, of = (1, "graph_") if self.of_graphs else (n, "")
        labels: Tensor | None = zeros.expand(num_rows)
        if self.multi_label:
            labels = torch.zeros((1, 1), dtype=torch.uint8).expand(num_rows, self.num_classes)
        targets = torch.zeros((1, 1)).expand(num_rows, self.num_targets) if self.num_targets else None
        answers: dict[str, Any] = {
            f"{of}labels": None if self.num_targets else labels,
            f"num_{of}classes": self.num_classes,
            f"{of}targets": targets,
        }
        if self.of_links:
            no_links = MeasuredLinks(src=zeros[:0], dst=zeros[:0], negatives=torch.zeros((0, 1), dtype=torch.int64))
            answers = {"links": no_links}
        return Graph(
            topology=Topology(
                indptr=zeros.expand(n + 1),
                indices=zeros[:0].int(),
                num_src=n,
                edge_data={"attr": torch.zeros(0, self.edge_dim)} if self.edge_dim else {},
                validate=False,
            ),
            features=torch.zeros((1, 1)).expand(n, self.num_features) if self.num_features else None,
            feature_names=self.feature_names,
            graph_ptr=torch.tensor([0, n]) if self.of_graphs else None,
            **answers,
            num_edge_types=self.num_edge_types,
            name="shapes",
        )

    def check(self, graph: Graph) -> None:
        """Refuse a graph whose features or edge types are not those of the contract; features without names pass by their number."""
        found, expected = graph.num_edge_types, self.num_edge_types
        if graph.num_features != self.num_features:
            raise _unfit(
                graph,
                "the graph has other features than the model was trained on",
                f"{graph.num_features} features per vertex, the model expects {self.num_features}",
                "Prepare the graph's features as those of the training graph.",
            )
        pairs = enumerate(zip(graph.feature_names, self.feature_names, strict=False))
        for at, (name, trained) in (pair for pair in pairs if pair[1][0] != pair[1][1]):
            raise _unfit(
                graph,
                "the graph's features have other names than those that the model was trained on",
                f"feature {at} is {shown(name)}, the model expects {shown(trained)}",
                f"Order the features as {listed(self.feature_names)}, or, if the names alone differ, rename them.",
            )
        if self.num_features == 0 and graph.num_vertices != self.num_vertices:
            raise _unfit(
                graph,
                "a model trained without features knows the vertices of its own graph only",
                f"{graph.num_vertices} vertices, the model has weights for {self.num_vertices}",
                "Use the training graph, or train on features.",
            )
        if found > expected or found == 0 < expected:
            raise _unfit(
                graph,
                f"the graph has {'more' if found else 'no'} edge types, but the model was trained on {expected}",
                f"{found} edge types, the model expects {expected}",
                "Number the edge types as in the training graph, and remove edges of unknown types.",
            )

    def check_labels(self, graph: Graph) -> None:
        """Refuse a graph without labels, or with labels of other classes; for a regression, without targets or with another number of them.

        What is checked are labels or targets of whole graphs where the model learns those, and links to measure where it learns links.
        """
        if self.of_links:
            if graph.links is None:
                raise _unfit(graph, "the graph has no links to measure", "links are None", TO_HOLD_OUT)
            return
        answers = answered(without_others(graph, self.task))
        if self.kind == "regression":
            if answers.num_targets != self.num_targets:
                raise _unfit(
                    graph,
                    "the graph has other targets than the model was trained on",
                    f"{answers_of(graph)}, the model predicts {self.num_targets} per {self.noun}",
                    "Give the graph the targets of the training graph, or use predict, which needs none.",
                )
            return
        if answers.labels is None:
            fix = "Attach labels, or use predict, which needs none."
            field = "graph_labels" if self.of_graphs else "labels"
            raise _unfit(graph, f"the graph has no {field}", f"{field} are None", fix)
        if answers.multi_label != self.multi_label or answers.num_classes != self.num_classes:
            raise _unfit(
                graph,
                "the graph has other classes than the model was trained on",
                f"{_classes(answers)}, the model predicts {_classes(self)}",
                "Number the classes as in the training graph and set num_classes to the model's.",
            )

    def check_logits(self, logits: object, num_rows: int, device: torch.device, model: str) -> Tensor:
        """Outputs that are dense floats, one row per vertex (or graph) and one column per class or target, on a device; else a LayerError."""
        expected, columns = [num_rows, self.num_outputs], "target" if self.kind == "regression" else "class"
        found = form_of(logits)
        if isinstance(logits, Tensor):
            is_placed = logits.device == device
            is_dense = logits.layout == torch.strided
            if is_placed and is_dense and list(logits.shape) == expected and logits.dtype in FEATURE_DTYPES:
                return logits
            found += "" if is_placed else f" on {logits.device}"
        raise LayerError(
            f"the model must return one row {'' if self.num_targets else 'of logits '}per {self.noun}, with a column per {columns}",
            value=f"{found}, expected a dense tensor of 16- to 64-bit floats {expected} on {device}",
            where=f"model {model}",
            fix=f"Let the last layer return such a tensor, with {self.num_outputs} columns.",
        )


def require_names(names: Sequence[object], num_classes: int, *, where: str) -> tuple[str, ...]:
    """The names of the classes as texts; refuse another number of names than of classes, or none."""
    if names and len(names) != num_classes:
        raise InputError(
            "classes and their names differ in number",
            value=f"{len(names)} names, {num_classes} classes",
            where=where,
            fix="Pass one name per class, or none.",
        )
    return tuple(str(name) for name in names)


def _unfit(graph: Graph, what: str, value: str, fix: str) -> InputError:
    return InputError(what, value=value, where=f"graph '{graph.name}'", fix=fix)


def _classes(of: Contract | Graph) -> str:
    return f"{of.num_classes} {'multi-label' if of.multi_label else 'exclusive'} classes"
