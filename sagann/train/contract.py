"""Contract: the sizes that a trained model expects of a graph, and the checks of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch

from sagann.errors import InputError, listed, shown
from sagann.graph import Graph, MeasuredLinks, Topology
from sagann.graph.answers import ALL_TASKS, PREFIXES, kind_of, unit_of
from sagann.graph.checks import Unit
from sagann.graph.graph import TO_HOLD_OUT, answers_of, for_task, task_of
from sagann.options import check_fields, integers, one_of
from sagann.storage.json_fields import as_texts

_COLUMNS = integers(0, 2**31 - 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Contract:
    """The task of a model, and the sizes of the graph that it was made for. A new graph must have the same."""

    task: Annotated[str, one_of(*ALL_TASKS)]
    "What is learned: one of :data:`sagann.graph.TASKS` or :data:`sagann.graph.GRAPH_TASKS`, or :data:`sagann.graph.LINK_TASK`."
    num_outputs: Annotated[int, integers(0, 2**48 - 1)]
    "Number of outputs per vertex, or per graph: one for each class, or each target. Rows that score links have any width: 0."
    num_features: Annotated[int, _COLUMNS]
    "Number of features per vertex; 0 where vertices have no features."
    num_edge_types: Annotated[int, _COLUMNS]
    "Number of edge types; 0 where edges have no types."
    num_vertices: Annotated[int, integers(0, 2**48 - 1)]
    "Number of vertices of the training graph. A model for a graph without features has weights for each of them."
    edge_dim: Annotated[int, _COLUMNS] = 0
    "Number of features per edge of the training graph; 0 where edges have none."
    feature_names: tuple[str, ...] = ()
    "Names of the features of the training graph, or empty."

    def __post_init__(self) -> None:
        check_fields(self)
        # A list where it is read from a file.
        object.__setattr__(self, "feature_names", as_texts([*self.feature_names]))

    @property
    def unit(self) -> Unit:
        """What the model is measured on."""
        return unit_of(self.task)

    @property
    def kind(self) -> str:
        """What the model learns about each vertex, or each graph, one of :data:`sagann.graph.TASKS`; or :data:`sagann.graph.LINK_TASK`."""
        return kind_of(self.task)

    @property
    def num_classes(self) -> int:
        """Number of classes; 0 for a regression and for links."""
        return 0 if self.kind == "regression" else self.num_outputs

    @classmethod
    def of(cls, graph: Graph) -> Contract:
        """The contract that ``graph`` keeps. A graph with answers for several tasks is an InputError."""
        graph = for_task(graph)
        answers = graph.answers
        return cls(
            task=task_of(graph) or "classification",
            num_outputs=0 if answers.unit == "link" else answers.num_outputs,
            num_features=graph.num_features,
            num_edge_types=graph.num_edge_types,
            num_vertices=graph.num_vertices,
            edge_dim=graph.edge_dim,
            feature_names=graph.feature_names,
        )

    def shape_only_graph(self) -> Graph:
        """A graph of these sizes without content, on which a model of the zoo can be built."""
        zeros, n, of = torch.zeros(1, dtype=torch.int64), self.num_vertices, PREFIXES[self.unit]
        num_rows = 1 if self.unit == "graph" else n
        answers: dict[str, Any] = {f"{of}labels": zeros.expand(num_rows), f"num_{of}classes": self.num_outputs}
        if self.kind == "multi-label":
            answers[f"{of}labels"] = zeros.to(torch.uint8).unsqueeze(1).expand(num_rows, self.num_outputs)
        elif self.kind == "regression":
            answers = {f"{of}targets": torch.zeros(1, 1).expand(num_rows, self.num_outputs)}
        elif self.unit == "link":
            answers = {"links": MeasuredLinks(src=zeros[:0], dst=zeros[:0], negatives=zeros[:0].unsqueeze(1))}
        return Graph(
            topology=Topology(
                indptr=zeros.expand(n + 1),
                indices=zeros[:0].int(),
                num_src=n,
                edge_data={"attr": torch.zeros(0, self.edge_dim)} if self.edge_dim else {},
                validate=False,
            ),
            features=torch.zeros(1, 1).expand(n, self.num_features) if self.num_features else None,
            feature_names=self.feature_names,
            graph_ptr=torch.tensor([0, n]) if self.unit == "graph" else None,
            **answers,
            num_edge_types=self.num_edge_types,
            name="shapes",
        )

    def check(self, graph: Graph) -> None:
        """Refuse a graph whose features or edge types are not those of the contract; features without names pass by their number."""
        found, expected = graph.num_edge_types, self.num_edge_types
        names = enumerate(zip(graph.feature_names, self.feature_names, strict=False))
        renamed = [(at, name, trained) for at, (name, trained) in names if name != trained]
        if graph.num_features != self.num_features:
            what = "the graph has other features than the model was trained on"
            value = f"{graph.num_features} features per vertex, the model expects {self.num_features}"
            hint = "Prepare the graph's features as those of the training graph."
        elif renamed:
            at, name, trained = renamed[0]
            what = "the graph's features have other names than those that the model was trained on"
            value = f"feature {at} is {shown(name)}, the model expects {shown(trained)}"
            hint = (
                f"Order the features as {listed(self.feature_names)}, or, if the names alone differ, rename them."
            )
        elif self.num_features == 0 and graph.num_vertices != self.num_vertices:
            what = "a model trained without features knows the vertices of its own graph only"
            value = f"{graph.num_vertices} vertices, the model has weights for {self.num_vertices}"
            hint = "Use the training graph, or train on features."
        elif found > expected or found == 0 < expected:
            what = "the graph has other edge types than the model was trained on"
            value = f"{found} edge types, the model expects {expected}"
            hint = "Number the edge types as in the training graph, and remove edges of unknown types."
        else:
            return
        raise InputError(f"{what}: {value} (in graph '{graph.name}')", hint=hint)

    def check_labels(self, graph: Graph) -> None:
        """Refuse a graph without what the model is measured by (labels, targets, or links), or with other classes or another number of targets."""
        answers = (graph.graphs if self.unit == "graph" else graph.vertices).only(self.task)
        is_multi_label, hint = self.kind == "multi-label", "Attach labels, or use predict, which needs none."
        if self.unit == "link":
            if graph.links is not None:
                return
            what, hint = "the graph has no links to measure: links are None", TO_HOLD_OUT
        elif self.kind == "regression":
            if answers.num_targets == self.num_outputs:
                return
            value = f"{answers_of(graph)}, the model predicts {self.num_outputs} per {self.unit}"
            what = f"the graph has other targets than the model was trained on: {value}"
            hint = "Give the graph the targets of the training graph, or use predict, which needs none."
        elif answers.labels is None:
            what = f"the graph has no {answers.prefix}labels: {answers.prefix}labels are None"
        elif answers.multi_label != is_multi_label or answers.num_classes != self.num_outputs:
            kinds = ("exclusive", "multi-label")
            value = f"{answers.num_classes} {kinds[answers.multi_label]} classes, the model predicts {self.num_outputs} {kinds[is_multi_label]} classes"
            what = f"the graph has other classes than the model was trained on: {value}"
            hint = "Number the classes as in the training graph and set num_classes to the model's."
        else:
            return
        raise InputError(f"{what} (in graph '{graph.name}')", hint=hint)


def require_names(names: Sequence[object], num_classes: int, *, where: str) -> tuple[str, ...]:
    """The names of the classes as texts; refuse another number of names than of classes, or none."""
    if names and len(names) != num_classes:
        raise InputError(
            f"classes and their names differ in number: {len(names)} names, {num_classes} classes (in {where})",
            hint="Pass one name per class, or none.",
        )
    return tuple(str(name) for name in names)
