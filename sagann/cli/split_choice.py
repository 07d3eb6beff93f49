"""Splits as ``--split`` names them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from sagann.errors import InputError
from sagann.graph import Graph, graph_split, per_class_split, planetoid_split, random_split

Number = TypeVar("Number", int, float)

DEFAULT_SPLIT = "random:0.6,0.2"
"Split of a dataset without a split of its own."


def apply_split(graph: Graph, choice: str, *, seed: int) -> Graph:
    """Split ``graph`` as ``choice`` says, instead of its own splits.

    Args:
        graph: a graph with labels.
        choice: 'random:TRAIN,VAL', 'per-class:TRAIN,VAL', 'planetoid:TRAIN,VAL,TEST' or 'graphs:TRAIN/VAL/TEST'.
        seed: seed of a random split.
    Raises:
        InputError: ``choice`` has another form, or the graph cannot be split so.
    Example:
        >>> import torch
        >>> from sagann import Topology
        >>> topology = Topology.from_coo(src=torch.tensor([0]), dst=torch.tensor([1]), num_src=10)
        >>> graph = Graph(topology=topology, labels=torch.zeros(10, dtype=torch.int64), num_classes=1)
        >>> {name: int(mask.sum()) for name, mask in apply_split(graph, "random:0.5,0.2", seed=0).splits.items()}
        {'train': 5, 'val': 2, 'test': 3}
    """
    kind, _, text = choice.partition(":")
    graph = replace(graph, splits={})
    parts = text.split("/" if kind == "graphs" else ",")
    match kind, parts:
        case "random", [_, _]:
            train, val = (_number(part, float, choice) for part in parts)
            return random_split(graph, train=train, val=val, seed=seed)
        case "per-class", [_, _]:
            train, val = (_number(part, _count, choice) for part in parts)
            return per_class_split(graph, train=train, val=val, seed=seed)
        case "planetoid", [_, _, _]:
            train, val, test = (_number(part, _count, choice) for part in parts)
            return planetoid_split(graph, train=train, val=val, test=test, seed=seed)
        case "graphs", [_, _, _]:
            names = [[_graph_key(key, graph) for key in part.split(",") if key] for part in parts]
            return graph_split(graph, train=names[0], val=names[1], test=names[2])
    raise _refused(choice)


def _number(text: str, kind: Callable[[str], Number], choice: str) -> Number:
    try:
        return kind(text)
    except ValueError as error:
        raise _refused(choice) from error


def _graph_key(key: str, graph: Graph) -> str | int:
    # A graph may be called '3', so names come first. A position has few digits.
    is_position = key.isascii() and key.isdigit() and len(key) < 19
    return int(key) if is_position and key not in graph.graph_names else key


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
