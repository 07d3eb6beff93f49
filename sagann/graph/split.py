"""Splits: which vertices, or which graphs of several in one, to train, validate and test on.

Only labelled vertices enter a split; masks are disjoint; the same seed gives the same split on every machine, and of a renumbered
graph the same vertices as of the original one.
In a multi-label graph every vertex counts as labelled, because a row of zeros is a valid label; so does every vertex of a graph with
targets and without labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral, Real

import torch
from torch import Tensor

from sagann.errors import InputError, require_type, shown
from sagann.graph.answers import SPLIT_NAMES, SPLITTERS, Answers
from sagann.graph.graph import Graph, answers_of
from sagann.ranges import RANGES


def random_split(graph: Graph, *, train: float = 0.6, val: float = 0.2, seed: int) -> Graph:
    """Draw shares of the labelled vertices at random; the rest is for testing.

    Args:
        graph: a graph with labels.
        train: share for training, in [0, 1].
        val: share for validation, in [0, 1].
        seed: seed of the draw.
    Raises:
        InputError: no labels, or shares that are negative or exceed 1 together.
    """
    require_shares(train, val, where="random_split")
    return _with_splits(graph, *_shares(_known(graph, graph.vertices), train, val, seed))


def random_graph_split(graph: Graph, *, train: float = 0.8, val: float = 0.1, seed: int) -> Graph:
    """Draw shares of whole graphs at random, to learn one answer for each; the rest is for testing.

    Graphs of unknown label are left out, unless they have targets.

    Args:
        graph: several graphs in one, with labels or targets of graphs.
        train: share for training, in [0, 1].
        val: share for validation, in [0, 1].
        seed: seed of the draw.
    Returns:
        the graph with ``graph_splits``.
    Raises:
        InputError: graphs have neither labels nor targets, or shares are negative or exceed 1 together.
    Example:
        >>> from sagann.graph import Topology
        >>> none = torch.empty(0, dtype=torch.int64)
        >>> ten = Graph(
        ...     topology=Topology.from_coo(src=none, dst=none, num_src=20),
        ...     graph_ptr=torch.arange(0, 21, 2),
        ...     graph_targets=torch.rand(10),
        ... )
        >>> {name: int(mask.sum()) for name, mask in random_graph_split(ten, seed=0).graph_splits.items()}
        {'train': 8, 'val': 1, 'test': 1}
    """
    require_shares(train, val, where="random_graph_split")
    shares = _shares(_known(graph, graph.graphs), train, val, seed)
    return replace(graph, graph_splits=_masks(graph.graphs.count, *shares))


def per_class_split(graph: Graph, *, train: int = 20, val: int = 30, seed: int) -> Graph:
    """Draw the same number of labelled vertices of every class; the rest is for testing.

    Args:
        graph: a graph with one label per vertex.
        train: vertices per class for training.
        val: vertices per class for validation.
        seed: seed of the draw.
    Raises:
        InputError: no labels, several labels per vertex, or a class with too few vertices.
    References:
        Shchur et al., Pitfalls of Graph Neural Network Evaluation, 2018, Sec. 3 (20 and 30 per class).
    """
    return _with_splits(graph, *_parts_per_class(graph, seed, train=train, val=val))


def planetoid_split(graph: Graph, *, train: int = 20, val: int = 500, test: int = 1000, seed: int) -> Graph:
    """Draw ``train`` labelled vertices of every class, then ``val`` and ``test`` of the other labelled vertices.

    Args:
        graph: a graph with one label per vertex.
        train: vertices per class for training.
        val: total number of vertices for validation.
        test: total number of vertices for testing.
        seed: seed of the draw.
    Raises:
        InputError: no labels, several labels per vertex, or too few vertices.
    References:
        Yang, Cohen and Salakhutdinov, Revisiting Semi-Supervised Learning with Graph Embeddings, ICML 2016.
    """
    _require_counts(graph, val=val, test=test)
    chosen, _, rest = _parts_per_class(graph, seed, train=train)
    if len(rest) < val + test:
        value = f"{len(rest)} are left after training, but val {val} and test {test} are needed"
        hint = "Lower val or test, or use random_split."
        raise refused(graph, "too few labelled vertices to split", value, hint)
    rest = rest[_shuffled(len(rest), seed + 1)]
    return _with_splits(graph, chosen, rest[:val], rest[val : val + test])


def require_shares(train: float, val: float, *, where: str) -> None:
    """Refuse shares of a split that are negative or exceed 1 together."""
    if not (all(isinstance(each, Real) for each in (train, val)) and min(train, val) >= 0 and train + val <= 1):
        raise InputError(
            f"shares of a split do not fit: train {shown(train)} and val {shown(val)}, expected each at least 0, and a "
            f"sum of at most 1 (in {where})",
            hint="Lower one of the shares; the rest is for testing.",
        )


def _require_counts(graph: Graph, **counts: object) -> None:
    for name, count in counts.items():
        if count not in RANGES["split"]:
            what, value = "a number of vertices of a split is out of range", f"{name} is {shown(count, 40)}"
            raise refused(graph, what, f"{value}, expected {RANGES['split']}", "Correct the number.")


def _parts_per_class(graph: Graph, seed: int, *, train: int, val: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """``train`` and ``val`` labelled vertices of each class, and the others; a class with too few is refused."""
    _require_counts(graph, train=train, val=val)
    vertices = _known(graph, graph.vertices)
    if graph.multi_label or graph.labels is None:
        what = "a split per class needs one label per vertex"
        value = "targets, and no labels" if graph.labels is None else "several labels per vertex"
        raise refused(graph, what, value, "Use random_split.")
    vertices = vertices[_shuffled(len(vertices), seed)]
    # Grouped by class without a loop over classes, because there may be more classes than vertices.
    labels, order = graph.labels[vertices].sort(stable=True)
    vertices = vertices[order]
    classes, sizes = labels.unique_consecutive(return_counts=True)
    absent = (classes != torch.arange(len(classes), device=classes.device)).nonzero()
    short = (sizes < train + val).nonzero()
    first_absent = int(absent[0]) if len(absent) else len(classes)
    label = min(first_absent, int(classes[short[0]]) if len(short) else graph.num_classes)
    if train + val and label < graph.num_classes:
        raise InputError(
            f"a class has too few vertices to split: {int(sizes[classes == label].sum())} labelled vertices, "
            f"train {train} and val {val} are needed (in class {label} of graph '{graph.name}')",
            hint="Lower the number per class, or use random_split.",
        )
    rank = torch.arange(len(vertices), device=vertices.device) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    return vertices[rank < train], vertices[(rank >= train) & (rank < train + val)], vertices[rank >= train + val]


def graph_split(
    graph: Graph, *, train: Sequence[str | int], val: Sequence[str | int] = (), test: Sequence[str | int] = ()
) -> Graph:
    """Split by whole graphs: train on some, test on others.

    Args:
        graph: several graphs in one, with labels.
        train, val, test: graphs by name or by position; graphs in none of the three are left out.
    Raises:
        InputError: ``graph`` has no ``graph_ptr``, a named graph is unknown, or a graph is named twice.
    """
    if graph.graph_ptr is None:
        hint = "Use random_split or per_class_split."
        raise refused(graph, "a single graph cannot be split by graphs", "no graph_ptr", hint)
    names = graph.graph_names
    positions: dict[str | int, int] = {number: number for number in range(graph.num_graphs)}
    for number, name in enumerate(names):
        positions.setdefault(name, number)
    part_of = torch.full((graph.num_graphs,), -1, dtype=torch.int64, device=graph.graph_ptr.device)
    for part, wanted in enumerate((train, val, test)):
        for key in wanted:
            if not isinstance(key, str | int) or key not in positions:
                known = ", ".join(names) or f"0 to {graph.num_graphs - 1}"
                raise refused(
                    graph, "unknown graph", f"{key!r}, known are {known}", "Name one of the known graphs."
                )
            if part_of[positions[key]] >= 0:
                raise refused(graph, "a graph stands twice in a split", f"{key!r}", "Name every graph once.")
            part_of[positions[key]] = part
    vertices = _known(graph, graph.vertices)
    part_of_vertex = torch.repeat_interleave(part_of, graph.graph_ptr.diff())[vertices]
    return _with_splits(graph, *(vertices[part_of_vertex == part] for part in range(3)))


def _known(graph: Graph, answers: Answers) -> Tensor:
    """The vertices, or graphs, with a known answer: int64, ascending; vertices by original id."""
    if not answers.tasks:
        others = graph.graphs if answers.unit == "vertex" else graph.vertices
        hint = f"Use {SPLITTERS[others.unit]}." if others.tasks else "Give the graph labels or targets first."
        raise refused(graph, f"{answers.units} without answers cannot be split", answers_of(graph), hint)
    known = answers.known()
    if answers.unit == "vertex" and graph.original_ids is not None:
        known = known[graph.original_ids.to(known.device)[known].argsort()]
    return known


def refused(graph: Graph, what: str, value: str, hint: str) -> InputError:
    """The error for a graph that cannot be split."""
    return InputError(f"{what}: {value} (in graph '{graph.name}')", hint=hint)


def generator_of(seed: int) -> torch.Generator:
    """A generator on the processor for any whole number. Numbers that are equal modulo 2^64 are the same seed, as for all other draws."""
    require_type(seed, Integral, where="seed", hint="Pass an integer, as seed=0.")
    # PyTorch refuses larger numbers.
    return torch.Generator().manual_seed(int(seed) % 2**64)


def _shuffled(count: int, seed: int) -> Tensor:
    return torch.randperm(count, generator=generator_of(seed))


def _shares(ids: Tensor, train: float, val: float, seed: int) -> tuple[Tensor, ...]:
    ids = ids[_shuffled(len(ids), seed)]
    # Rounded cumulatively, so that shares which add up to 1 leave nothing over.
    return torch.tensor_split(ids, [round(train * len(ids)), round((train + val) * len(ids))])


def _with_splits(graph: Graph, *parts: Tensor) -> Graph:
    return graph.with_splits(_masks(graph.num_vertices, *parts))


def _masks(count: int, *parts: Tensor) -> dict[str, Tensor]:
    none = parts[0].new_zeros(count, dtype=torch.bool)
    return {name: none.index_fill(0, ids, True) for name, ids in zip(SPLIT_NAMES, parts, strict=True)}
