"""Splits in words, as ``--split`` takes them: read, and applied to a graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from sagann.errors import InputError
from sagann.graph import Graph, graph_split, per_class_split, planetoid_split, random_split

Number = TypeVar("Number", int, float)

DEFAULT_SPLIT = "random:0.6,0.2"
"For a dataset without a split of its own."


def apply_split(graph: Graph, choice: str, *, seed: int) -> Graph:
    """Split ``graph`` as ``choice`` says; splits that it has are dropped.

    Args:
        graph: a graph with labels.
        choice: 'random:TRAIN,VAL', 'per-class:TRAIN,VAL', 'planetoid:TRAIN,VAL,TEST' or 'graphs:TRAIN/VAL/TEST'.
        seed: of the draw.
    Raises:
        InputError: ``choice`` is not one of these, or the graph cannot be split so.
    Example:
        >>> import torch
        >>> from sagann import Topology
        >>> topology = Topology.from_coo(src=torch.tensor([0]), dst=torch.tensor([1]), num_src=10)
        >>> graph = Graph(topology=topology, labels=torch.zeros(10, dtype=torch.int64), num_classes=1)
        >>> {name: int(mask.sum()) for name, mask in apply_split(graph, "random:0.5,0.2", seed=0).splits.items()}
        {'train': 5, 'val': 2, 'test': 3}
    """
    kind, colon, parameters = choice.partition(":")
    split = _KINDS.get(kind)
    if split is None or not colon:
        raise _refused(choice)
    return split(replace(graph, splits={}), parameters, choice, seed)


def _random(graph: Graph, parameters: str, choice: str, seed: int) -> Graph:
    train, val = _numbers(parameters, 2, float, choice)
    return random_split(graph, train=train, val=val, seed=seed)


def _per_class(graph: Graph, parameters: str, choice: str, seed: int) -> Graph:
    train, val = _numbers(parameters, 2, _count, choice)
    return per_class_split(graph, train=train, val=val, seed=seed)


def _planetoid(graph: Graph, parameters: str, choice: str, seed: int) -> Graph:
    train, val, test = _numbers(parameters, 3, _count, choice)
    return planetoid_split(graph, train=train, val=val, test=test, seed=seed)


def _by_graphs(graph: Graph, parameters: str, choice: str, seed: int) -> Graph:
    parts = parameters.split("/")
    if len(parts) != 3:
        raise _refused(choice)
    train, val, test = ([_graph_key(key, graph) for key in part.split(",") if key] for part in parts)
    return graph_split(graph, train=train, val=val, test=test)


_KINDS: dict[str, Callable[[Graph, str, str, int], Graph]] = {
    "random": _random,
    "per-class": _per_class,
    "planetoid": _planetoid,
    "graphs": _by_graphs,
}


def _graph_key(key: str, graph: Graph) -> str | int:
    # A name goes first, should a graph be called '3'. Only short digits: a position is never longer.
    is_position = key.isascii() and key.isdigit() and len(key) < 19
    return int(key) if is_position and key not in graph.graph_names else key


def _numbers(parameters: str, number: int, kind: Callable[[str], Number], choice: str) -> list[Number]:
    parts = parameters.split(",")
    try:
        values = [kind(part) for part in parts]
    except ValueError as error:
        raise _refused(choice) from error
    if len(values) != number:
        raise _refused(choice)
    return values


def _count(text: str) -> int:
    count = int(text)
    if count < 0:
        raise ValueError(text)
    return count


def _refused(choice: str) -> InputError:
    return InputError(
        "split is not understood",
        value=f"'{choice[:80]}'",
        where="--split",
        fix="Write random:0.6,0.2 (shares), per-class:20,30 (vertices), "
        "planetoid:20,500,1000 (per class, then in all), or graphs:TRAIN/VAL/TEST "
        "(names or positions, comma-separated).",
    )
