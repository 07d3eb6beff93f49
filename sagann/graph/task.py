"""Tasks: what a model learns about vertices, whole graphs or links, and which data of a graph have the answers.

A graph may hold the answers of several tasks: labels and targets of its vertices, and of the graphs in it, and links that were held out. A
model learns one task, on a graph that :func:`for_task` gives.
"""

from __future__ import annotations

from dataclasses import replace

from sagann.config import LINK_TASK
from sagann.errors import InputError, require_choice
from sagann.graph.answers import ALL_TASKS
from sagann.graph.graph import Graph

LEARNED, VALIDATED = 0.85, 0.05
"Shares of the edges to learn and to validate on, where none are named; the rest is for testing."
SPLIT_OF_EDGES = "split"
"Edge data that say which edges are to learn (0), to validate on (1) and to test on (2)."
TO_HOLD_OUT = f"Hold some out with sagann.sampling.hold_out_links, or --split edges:{LEARNED},{VALIDATED}."
"What to do where links are to be learned, and none are held out."


def tasks_of(graph: Graph) -> dict[str, str]:
    """The tasks that a graph has answers for, some of ALL_TASKS in their order, each with its answers in words."""
    return {task: said for answers in graph.all_answers for task, said in answers.tasks.items()}


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
            f"the graph has answers for several tasks: {answers_of(graph)}, and no task is named (in graph "
            f"'{graph.name}')",
            hint=f"Choose {' or '.join(known)}: TrainConfig(task=...), or --task.",
        )
    if task is not None and task not in known:
        raise InputError(
            f"the task does not fit the graph: task '{task}', graph '{graph.name}' has {answers_of(graph)} (in "
            f"{where})",
            hint=TO_HOLD_OUT
            if task == LINK_TASK
            else f"Choose {' or '.join(known)}."
            if known
            else "Give the graph labels or targets.",
        )
    return without_others(graph, task or next(iter(known), None))


def without_others(graph: Graph, task: str | None) -> Graph:
    """The graph without the answers of any task but ``task``; all are kept for None. It need not have answers for ``task``."""
    if task is None or tasks_of(graph).keys() <= {task}:
        return graph
    kept = graph.vertices.only(task).fields() | graph.graphs.only(task).fields()
    return replace(graph, **kept, links=graph.links if task == LINK_TASK else None)


def answers_of(graph: Graph) -> str:
    """What a graph has answers for, in words."""
    return " and ".join(tasks_of(graph).values()) or "neither labels nor targets"


def left_out(graph: Graph, task: str | None) -> str:
    """A sentence about the answers that :func:`for_task` leaves out; empty where it leaves out none."""
    others = [said for other, said in tasks_of(graph).items() if task not in (None, other)]
    if not others:
        return ""
    return f"Graph '{graph.name}' also has {' and '.join(others)}; the task '{task}' does not use them."
