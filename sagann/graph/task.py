"""Tasks: what a model learns about the vertices of a graph, and which data of the graph have the answers.

A graph may hold the answers of two tasks, labels and targets. A model learns one task, on a graph that :func:`for_task` gives.
"""

from __future__ import annotations

from dataclasses import replace

from sagann.errors import InputError, require_choice
from sagann.graph.graph import Graph

TASKS = ("classification", "multi-label", "regression")
"""Tasks on vertices: one class for each vertex, any number of classes for each, or numbers for each."""


def tasks_of(graph: Graph) -> tuple[str, ...]:
    """The tasks that a graph has answers for: none, one, or two of TASKS."""
    of_labels = () if graph.labels is None else ("multi-label",) if graph.multi_label else ("classification",)
    return of_labels if graph.targets is None else (*of_labels, "regression")


def task_of(graph: Graph) -> str | None:
    """The only task that a graph has answers for; None for a graph without answers.

    Raises:
        InputError: the graph has answers for two tasks.
    """
    return next(iter(tasks_of(for_task(graph))), None)


def for_task(graph: Graph, task: str | None = None, *, where: str = "for_task") -> Graph:
    """The graph with the answers of one task alone: labels without targets, or targets without labels.

    Args:
        graph: any graph.
        task: one of TASKS. None for the only task that the graph has answers for.
        where: the argument that names the task, for errors.
    Raises:
        InputError: the graph has no answers for ``task``, or answers for two tasks and ``task`` is None.
    Example:
        >>> import torch
        >>> from sagann.graph import Topology
        >>> topology = Topology.from_coo(src=torch.tensor([0]), dst=torch.tensor([1]), num_src=2)
        >>> houses = Graph(topology=topology, labels=torch.tensor([0, 1]), num_classes=2, targets=torch.tensor([1.5, 2.0]))
        >>> for_task(houses, "regression")
        Graph(num_vertices=2, num_edges=1, num_features=0, num_classes=0, num_targets=1)
    """
    require_choice(task, (None, *TASKS), what="unknown task", where=where)
    known = tasks_of(graph)
    if task is None and len(known) > 1:
        raise InputError(
            "the graph has answers for two tasks",
            value=f"{answers_of(graph)}, and no task is named",
            where=f"graph '{graph.name}'",
            fix=f"Choose {' or '.join(known)}: TrainConfig(task=...), or --task.",
        )
    if task is not None and task not in known:
        raise InputError(
            "the task does not fit the graph",
            value=f"task '{task}', graph '{graph.name}' has {answers_of(graph)}",
            where=where,
            fix=f"Choose {' or '.join(known)}."
            if known
            else missing_answers(graph, "Give the graph labels or targets."),
        )
    return without_others(graph, task or (known[0] if known else None))


def without_others(graph: Graph, task: str | None) -> Graph:
    """The graph without the answers of any task but ``task``; all are kept for None. It need not have answers for ``task``."""
    if task == "regression" and graph.labels is not None:
        return replace(graph, labels=None, num_classes=0)
    if task in ("classification", "multi-label") and graph.targets is not None:
        return replace(graph, targets=None)
    return graph


def answers_of(graph: Graph) -> str:
    """What a graph has answers for, in words."""
    found = []
    if graph.labels is not None:
        several = ", several per vertex" if graph.multi_label else ""
        found.append(f"labels of {graph.num_classes} classes{several}")
    if graph.targets is not None:
        found.append(f"{graph.num_targets} target{'s' if graph.num_targets != 1 else ''} per vertex")
    if found:
        return " and ".join(found)
    of_graphs = answers_of_whole_graphs(graph)
    return "neither labels nor targets" + (f" per vertex, but {of_graphs}" if of_graphs else "")


def missing_answers(graph: Graph, fix: str) -> str:
    """What to do where a graph has no answers for a Trainer: ``fix``, but for graphs that have answers as wholes."""
    of_graphs = "Learn answers of whole graphs in a loop of your own, with sagann.GraphBatches and sagann.nn.pool."
    return of_graphs if answers_of_whole_graphs(graph) else fix


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
    kept = without_others(graph, task)
    if kept is graph:
        return ""
    others = replace(graph, targets=None) if task == "regression" else replace(graph, labels=None, num_classes=0)
    return f"Graph '{graph.name}' also has {answers_of(others)}; the task '{task}' does not use them."
