"""Tasks: what a model learns about vertices, whole graphs or links, and which data of a graph have the answers.

A graph may hold the answers of several tasks: labels and targets of its vertices, and of the graphs in it, and links that were held out. A
model learns one task, on a graph that :func:`for_task` gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch

from sagann.errors import InputError, require_choice
from sagann.graph.graph import Graph
from sagann.graph.topology import Topology

TASKS = ("classification", "multi-label", "regression")
"""Tasks on vertices: one class for each vertex, any number of classes for each, or numbers for each."""
OF_GRAPHS = "graph-"
"What the name of a task on whole graphs begins with."
GRAPH_TASKS = tuple(OF_GRAPHS + task for task in TASKS)
"""Tasks on the graphs of several in one: one class for each graph, any number of classes for each, or numbers for each."""
LINK_TASK = "link-prediction"
"The task on pairs of vertices: whether an edge joins them."
LEARNED, VALIDATED = 0.85, 0.05
"Shares of the edges to learn and to validate on, where none are named; the rest is for testing."
SPLIT_OF_EDGES = "split"
"Edge data that say which edges are to learn (0), to validate on (1) and to test on (2)."
TO_HOLD_OUT = f"Hold some out with sagann.sampling.hold_out_links, or --split edges:{LEARNED},{VALIDATED}."
"What to do where links are to be learned, and none are held out."
ALL_TASKS = (*TASKS, *GRAPH_TASKS, LINK_TASK)
"Every task."

_ANSWERS = MappingProxyType(
    {
        task: kind + ("targets" if task.endswith("regression") else "labels")
        for kind, tasks in (("", TASKS), ("graph_", GRAPH_TASKS))
        for task in tasks
    }
    | {LINK_TASK: "links"}
)
"The field of a graph that has the answers of each task."
_ABSENT: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "labels": {"labels": None, "num_classes": 0},
        "targets": {"targets": None},
        "graph_labels": {"graph_labels": None, "num_graph_classes": 0},
        "graph_targets": {"graph_targets": None},
        "links": {"links": None},
    }
)
"For each field with answers, the fields of a graph without them."


def tasks_of(graph: Graph) -> tuple[str, ...]:
    """The tasks that a graph has answers for: some of ALL_TASKS, in their order."""
    found = []
    for kind, labels, targets in (
        ("", graph.labels, graph.targets),
        (OF_GRAPHS, graph.graph_labels, graph.graph_targets),
    ):
        if labels is not None:
            found.append(kind + ("multi-label" if labels.ndim == 2 else "classification"))
        if targets is not None:
            found.append(kind + "regression")
    if graph.links is not None:
        found.append(LINK_TASK)
    return tuple(found)


def task_of(graph: Graph) -> str | None:
    """The only task that a graph has answers for; None for a graph without answers.

    Raises:
        InputError: the graph has answers for several tasks.
    """
    return next(iter(tasks_of(for_task(graph))), None)


def for_task(graph: Graph, task: str | None = None, *, where: str = "for_task") -> Graph:
    """The graph with the answers of one task alone: labels or targets, of vertices or of whole graphs, or links.

    Args:
        graph: any graph.
        task: one of ALL_TASKS. None for the only task that the graph has answers for.
        where: the argument that names the task, for errors.
    Raises:
        InputError: the graph has no answers for ``task``, or answers for several tasks and ``task`` is None.
    Example:
        >>> import torch
        >>> from sagann.graph import Topology
        >>> topology = Topology.from_coo(src=torch.tensor([0]), dst=torch.tensor([1]), num_src=2)
        >>> houses = Graph(topology=topology, labels=torch.tensor([0, 1]), num_classes=2, targets=torch.tensor([1.5, 2.0]))
        >>> for_task(houses, "regression")
        Graph(num_vertices=2, num_edges=1, num_features=0, num_classes=0, num_targets=1)
    """
    require_choice(task, (None, *ALL_TASKS), what="unknown task", where=where)
    known = tasks_of(graph)
    if task is None and len(known) > 1:
        raise InputError(
            "the graph has answers for several tasks",
            value=f"{answers_of(graph)}, and no task is named",
            where=f"graph '{graph.name}'",
            fix=f"Choose {' or '.join(known)}: TrainConfig(task=...), or --task.",
        )
    if task is not None and task not in known:
        raise InputError(
            "the task does not fit the graph",
            value=f"task '{task}', graph '{graph.name}' has {answers_of(graph)}",
            where=where,
            fix=TO_HOLD_OUT
            if task == LINK_TASK
            else f"Choose {' or '.join(known)}."
            if known
            else "Give the graph labels or targets.",
        )
    return without_others(graph, task or (known[0] if known else None))


def without_others(graph: Graph, task: str | None) -> Graph:
    """The graph without the answers of any task but ``task``; all are kept for None. It need not have answers for ``task``."""
    if task is None:
        return graph
    others = [name for name in _ABSENT if name != _ANSWERS[task] and getattr(graph, name) is not None]
    changes = {key: value for name in others for key, value in _ABSENT[name].items()}
    return replace(graph, **changes) if changes else graph


def is_of_graphs(graph: Graph) -> bool:
    """Whether a graph with the answers of one task has those of whole graphs."""
    return graph.graph_labels is not None or graph.graph_targets is not None


def is_of_links(graph: Graph) -> bool:
    """Whether a graph with the answers of one task has those of links."""
    return graph.links is not None


def with_vertex_per_graph(graph: Graph) -> Graph:
    """The graphs of several in one as vertices, without edges and features: the answers of whole graphs become those of vertices."""
    return Graph(
        topology=_no_edges(graph.num_graphs),
        labels=graph.graph_labels,
        num_classes=graph.num_graph_classes,
        targets=graph.graph_targets,
        splits=graph.graph_splits,
        name=graph.name,
    )


def with_vertex_per_link(graph: Graph) -> Graph:
    """The links that a graph holds out as vertices, without edges and features, all of the one class 0.

    A model's outputs for a link are the score of the link and those of the negative links that it is ranked among: 0 is the place of the
    positive one.
    """
    assert graph.links is not None
    count, device = graph.links.num_links, graph.links.src.device
    return Graph(
        topology=_no_edges(count),
        labels=torch.zeros(count, dtype=torch.int64, device=device),
        num_classes=1,
        splits=graph.links.splits,
        name=graph.name,
    )


def _no_edges(num_vertices: int) -> Topology:
    none = torch.zeros(1, dtype=torch.int64)
    return Topology(
        indptr=none.expand(num_vertices + 1), indices=none[:0].int(), num_src=num_vertices, validate=False
    )


def answered(graph: Graph) -> Graph:
    """The graph whose vertices a task has answers for: ``graph``, or one with a vertex for each of its graphs, or of its links.

    ``graph`` has the answers of one task.
    """
    if is_of_links(graph):
        return with_vertex_per_link(graph)
    return with_vertex_per_graph(graph) if is_of_graphs(graph) else graph


def answers_of(graph: Graph) -> str:
    """What a graph has answers for, in words."""
    found = []
    if graph.labels is not None:
        several = ", several per vertex" if graph.multi_label else ""
        found.append(f"labels of {graph.num_classes} classes{several}")
    if graph.targets is not None:
        found.append(f"{graph.num_targets} target{'s' if graph.num_targets != 1 else ''} per vertex")
    if of_graphs := answers_of_whole_graphs(graph):
        found.append(of_graphs)
    if graph.links is not None:
        found.append(f"{graph.links.num_links} links to measure")
    return " and ".join(found) or "neither labels nor targets"


def answers_of_whole_graphs(graph: Graph) -> str:
    """What several graphs in one have answers for as wholes, in words; empty where there is nothing."""
    found = []
    if graph.graph_labels is not None:
        several = ", several per graph" if graph.graph_labels.ndim == 2 else ""
        found.append(f"labels of {graph.num_graph_classes} classes of graphs{several}")
    if graph.graph_targets is not None:
        found.append(f"{graph.num_graph_targets} target{'s' if graph.num_graph_targets != 1 else ''} per graph")
    return " and ".join(found)


def left_out(graph: Graph, task: str | None) -> str:
    """A sentence about the answers that :func:`for_task` leaves out; empty where it leaves out none."""
    if task is None or without_others(graph, task) is graph:
        return ""
    others = replace(graph, **_ABSENT[_ANSWERS[task]])
    return f"Graph '{graph.name}' also has {answers_of(others)}; the task '{task}' does not use them."
