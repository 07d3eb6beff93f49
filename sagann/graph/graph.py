"""Graph: a topology with the data of its vertices; of several graphs in one, boundaries and answers; and links that were held out.

A Graph is immutable; every transformation returns a new Graph that shares all unchanged tensors. Tensors may be
memory-mapped, so making a Graph checks shapes, not values; :func:`sagann.graph.validate_graph` checks the values.

A graph may hold the answers of several tasks; a model learns one of them, on a graph that :func:`for_task` gives.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from sagann.config import LINK_TASK
from sagann.errors import InputError, require_choice, require_type
from sagann.graph.answers import ALL_TASKS, PREFIXES, Answers, require_rows
from sagann.graph.checks import AS_TENSOR, Unit, wrong_form
from sagann.graph.feature_store import (
    Features,
    FeatureStore,
    TensorRows,
    declare_constant,
    feature_store,
    tensor_of,
)
from sagann.graph.measured_links import MeasuredLinks
from sagann.graph.rows import is_sparse, mapped_arrays
from sagann.graph.topology import Topology
from sagann.ranges import require_integer

LEARNED, VALIDATED = 0.85, 0.05
"Shares of the edges to learn and to validate on, where none are named; the rest is for testing."
SPLIT_OF_EDGES = "split"
"Edge data that say which edges are to learn (0), to validate on (1) and to test on (2)."
TO_HOLD_OUT = f"Hold some out with sagann.sampling.hold_out_links, or --split edges:{LEARNED},{VALIDATED}."
"What to do where links are to be learned, and none are held out."
NAMES = ("graph_names", "feature_names", "class_names", "edge_type_names")
"Fields of a graph that hold names."


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Graph:
    """A graph to train on: square topology, vertex data, splits.

    A Graph may hold several separate graphs: ``graph_ptr`` has their offsets, and no edge joins two of them.

    Example:
        >>> topology = Topology.from_coo(src=torch.tensor([0, 1]), dst=torch.tensor([1, 2]), num_src=3)
        >>> graph = Graph(topology=topology, features=torch.eye(3), labels=torch.tensor([0, 1, 1]), num_classes=2)
        >>> graph
        Graph(num_vertices=3, num_edges=2, num_features=3, num_classes=2)
        >>> [hop.num_edges for hop in graph.hops(2)]
        [2, 2]
    """

    topology: Topology
    "Edges and edge data ('weight', 'type', ...), with ``num_src == num_dst``."
    features: Features | None = None
    """Vertex features [num_vertices, F], constant: a dense tensor, a torch.sparse_csr tensor, or a feature store
    (:mod:`sagann.graph.feature_store`); None for a graph without features."""
    labels: Tensor | None = None
    "Labels: int64 [num_vertices], -1 for unknown; or uint8 [num_vertices, num_classes] of 0 and 1 for multi-label."
    num_classes: int = 0
    "Number of classes, 0 without labels; by default one more than the largest label, or the number of columns."
    targets: Tensor | None = None
    """Values to predict in a regression: finite float32 [num_vertices], or [num_vertices, num_targets]; a single column is kept as
    [num_vertices]. Where a value is unknown, it is any number, and the vertex is in no split."""
    splits: Mapping[str, Tensor] = field(default_factory=dict)
    "Disjoint masks, bool [num_vertices], by name: 'train', 'val', 'test'."
    graph_ptr: Tensor | None = None
    """Offsets of the graphs, int64 [num_graphs + 1]: graph g has the vertices graph_ptr[g] to graph_ptr[g + 1] - 1;
    None for a single graph."""
    graph_names: tuple[str, ...] = ()
    "Names of the graphs, or empty."
    graph_labels: Tensor | None = None
    """A label for each graph: int64 [num_graphs], -1 for unknown; or uint8 [num_graphs, num_graph_classes] of 0 and 1. Like all answers of
    whole graphs, it needs ``graph_ptr``."""
    num_graph_classes: int = 0
    "Number of classes of graphs, as ``num_classes``."
    graph_targets: Tensor | None = None
    """Values to predict for each graph: finite float32 [num_graphs], or [num_graphs, num_graph_targets]; a single column is kept as
    [num_graphs]. Where a value is unknown, it is any number, and the graph is in no split."""
    graph_splits: Mapping[str, Tensor] = field(default_factory=dict)
    "Disjoint masks over graphs, bool [num_graphs], by name: 'train', 'val', 'test'."
    links: MeasuredLinks | None = None
    """Links that a model which learns links is measured by; those to validate and test on are no edges of the topology
    (:func:`sagann.sampling.hold_out_links`). None where links are not learned."""
    original_ids: Tensor | None = None
    """Ids that the vertices had before they were renumbered, int64 [num_vertices], a permutation, on the CPU: vertex i was vertex
    original_ids[i]. None for a graph that was never renumbered."""
    num_edge_types: int = 0
    """Number of edge types, 0 without types; by default one more than the largest. The types are ``topology.edge_data['type']``, from 0."""
    feature_names: tuple[str, ...] = ()
    "Names of the features, or empty. These names and the following ones are dropped where their number does not fit."
    class_names: tuple[str, ...] = ()
    "Names of the classes, or empty."
    edge_type_names: tuple[str, ...] = ()
    "Names of the edge types, or empty."
    name: str = "graph"
    "Name of the graph in messages and metrics."

    def __post_init__(self) -> None:
        _check_types(self)
        n = self.num_vertices
        if self.topology.num_src != n:
            raise InputError(
                f"a graph needs a square topology: {self.topology.num_src} sources, {n} destinations (in graph '{self.name}')",
                hint="Use the same ids for sources and destinations.",
            )
        if isinstance(self.features, TensorRows):
            object.__setattr__(self, "features", self.features.tensor)
        features = self.features
        if isinstance(features, Tensor) and not features.requires_grad:
            declare_constant(features)
        for what, rows in (("features", features), ("original_ids", self.original_ids)):
            if rows is not None:
                require_rows(what, rows, n, "vertices", owner=self.name, hint="Pass one row per vertex.")
        # Columns and numbers of classes as the records state them.
        for name, value in {**self.vertices.fields(), **self.graphs.fields()}.items():
            object.__setattr__(self, name, value)
        types = self.topology.edge_data.get("type")
        num_edge_types = int(self.num_edge_types)
        if not num_edge_types and types is not None and not types.is_floating_point() and len(types):
            num_edge_types = max(0, int(types.max()) + 1)
        object.__setattr__(self, "num_edge_types", num_edge_types)
        row_shape = () if features is None else tuple(feature_store(features).row_shape)
        if features is not None and len(row_shape) != 1:
            value = f"rows of shape {list(row_shape)}, expected [num_features] (in graph '{self.name}')"
            raise InputError(f"features are no matrix: {value}", hint="Pass features.reshape(num_vertices, -1).")
        fits = {
            "feature_names": (len(self.feature_names),) == row_shape,
            "class_names": len(self.class_names) == self.num_classes,
            "edge_type_names": len(self.edge_type_names) == self.num_edge_types,
        }
        for names in (names for names, is_fit in fits.items() if not is_fit):
            object.__setattr__(self, names, ())

    @property
    def num_vertices(self) -> int:
        """Number of vertices."""
        return self.topology.num_dst

    @property
    def num_edges(self) -> int:
        """Number of directed edges."""
        return self.topology.num_edges

    @property
    def num_features(self) -> int:
        """Number of features per vertex; 0 without features."""
        return 0 if self.features is None else feature_store(self.features).row_shape[0]

    @property
    def edge_dim(self) -> int:
        """Number of features per edge (edge data ``"attr"``); 0 without."""
        attributes = self.topology.edge_data.get("attr")
        return 0 if attributes is None else math.prod(attributes.shape[1:])

    @property
    def vertices(self) -> Answers:
        """Labels, targets and splits of the vertices."""
        return self._answers_of("vertex", self.num_vertices)

    @property
    def graphs(self) -> Answers:
        """Labels, targets and splits of the graphs in this one."""
        return self._answers_of("graph", 0 if self.graph_ptr is None else self.num_graphs)

    def _answers_of(self, unit: Unit, count: int) -> Answers:
        prefix = PREFIXES[unit]
        arrays = {name: getattr(self, prefix + name) for name in ("labels", "targets", "splits")}
        num_classes = getattr(self, f"num_{prefix}classes")
        return Answers(unit=unit, count=count, owner=self.name, num_classes=num_classes, **arrays)

    @property
    def all_answers(self) -> tuple[Answers, ...]:
        """The answers of vertices and of graphs, and of links where some are held out."""
        return (self.vertices, self.graphs, *(() if self.links is None else (self.links.answers(self.name),)))

    @property
    def answers(self) -> Answers:
        """The answers that there are, of a graph with those of one task: of links, of graphs, or else of vertices."""
        return next((found for found in reversed(self.all_answers) if found.tasks), self.vertices)

    @property
    def num_targets(self) -> int:
        """Number of target values per vertex; 0 without targets."""
        return self.vertices.num_targets

    @property
    def num_outputs(self) -> int:
        """Number of outputs of a model per vertex: one for each target where there are targets and no labels, else one for each class."""
        return self.vertices.num_outputs

    @property
    def num_graphs(self) -> int:
        """Number of graphs in this one; 1 without offsets."""
        return 1 if self.graph_ptr is None else len(self.graph_ptr) - 1

    @property
    def multi_label(self) -> bool:
        """Whether a vertex may have several labels."""
        return self.vertices.multi_label

    def hops(self, k: int) -> list[Topology]:
        """The k topologies that a k-layer model walks: k times the topology of this graph."""
        return [self.topology] * k

    def with_topology(self, topology: Topology) -> Graph:
        """The same vertices with other edges."""
        return replace(self, topology=topology)

    def with_features(self, features: Features | None) -> Graph:
        """The same graph with other features [num_vertices, F]; None for none."""
        return replace(self, features=features)

    def with_labels(self, labels: Tensor | None, *, num_classes: int | None = None) -> Graph:
        """The same graph with other labels: [num_vertices], -1 for unknown, or 0 and 1 [num_vertices, C].

        ``num_classes`` is by default one more than the largest label, or C.
        """
        return replace(self, labels=labels, num_classes=num_classes or 0)

    def with_splits(self, splits: Mapping[str, Tensor]) -> Graph:
        """The same graph with other splits: bool masks [num_vertices] of 'train', 'val' and 'test'."""
        return replace(self, splits=splits)

    def in_memory(self) -> Graph:
        """The same graph with its features in a tensor; all rows of a feature store are read into memory."""
        return self if self.features is None else replace(self, features=tensor_of(self.features))

    def to(self, device: torch.device | str) -> Graph:
        """The same graph on ``device``. A feature store stays a store on the CPU; another device gets all its rows.

        The original ids stay on the CPU.
        """

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(device)

        features = self.features
        if features is not None and (isinstance(features, Tensor) or torch.device(device).type != "cpu"):
            features = tensor_of(features).to(device)
        return replace(
            self,
            topology=self.topology.to(device),
            features=features,
            **self.vertices.mapped(move).fields(),
            **self.graphs.mapped(move).fields(),
            graph_ptr=mapped_arrays(self.graph_ptr, move),
            links=mapped_arrays(self.links, move),
        )

    def __repr__(self) -> str:
        targets = f", num_targets={self.num_targets}" if self.targets is not None else ""
        several = f", num_graphs={self.num_graphs}" if self.graph_ptr is not None else ""
        of_graphs = f", num_graph_classes={self.num_graph_classes}" if self.graph_labels is not None else ""
        of_graphs += f", num_graph_targets={self.graphs.num_targets}" if self.graph_targets is not None else ""
        links = f", num_links={self.links.num_links}" if self.links is not None else ""
        return (
            f"Graph(num_vertices={self.num_vertices}, num_edges={self.num_edges}, "
            f"num_features={self.num_features}, num_classes={self.num_classes}{targets}{several}{of_graphs}{links})"
        )


def named_arrays(graph: Graph) -> Iterator[tuple[str, Features]]:
    """The arrays of a graph, by the names of their files in a dataset: edges first, then features, with those of sparse features one by one."""
    yield "indptr", graph.topology.indptr
    yield "indices", graph.topology.indices
    for name, rows in sorted(graph.topology.edge_data.items()):
        yield f"edge_{name}", rows
    if is_sparse(graph.features):
        yield "features_indptr", graph.features.crow_indices()
        yield "features_indices", graph.features.col_indices()
        yield "features_values", graph.features.values()
    elif graph.features is not None:
        yield "features", graph.features
    yield from graph.vertices.arrays().items()
    if graph.graph_ptr is not None:
        yield "graph_ptr", graph.graph_ptr
    yield from graph.graphs.arrays().items()
    if graph.links is not None:
        yield from graph.links.arrays()
    if graph.original_ids is not None:
        yield "original_ids", graph.original_ids


def _check_types(graph: Graph) -> None:
    kinds: dict[str, tuple[Any, str]] = {
        "features": ((Tensor, FeatureStore), AS_TENSOR),
        "graph_ptr": (Tensor, AS_TENSOR),
        "original_ids": (Tensor, AS_TENSOR),
        "links": (MeasuredLinks, "Make them with sagann.sampling.hold_out_links."),
    }
    hint = "Make one with Topology.from_coo(src=..., dst=...)."
    require_type(graph.topology, Topology, where="Graph.topology", hint=hint)
    for name, (kind, hint) in kinds.items():
        require_type(getattr(graph, name), kind, where=f"Graph.{name}", hint=hint, optional=True)
    if graph.graph_ptr is not None and graph.graph_ptr.ndim != 1:
        hint = "Pass the offsets of the graphs: they start at 0, and end at the number of vertices."
        raise wrong_form(graph.graph_ptr, "int64 [num_graphs + 1]", where="Graph.graph_ptr", hint=hint)
    require_integer(graph.num_edge_types, "num_edge_types", where="Graph.num_edge_types")
    require_type(graph.name, str, where="Graph.name", hint="Pass text.")
    for name in NAMES:
        require_type(getattr(graph, name), tuple, where=f"Graph.{name}", hint="Pass a tuple of names.")
        for text in getattr(graph, name):
            require_type(text, str, where=f"Graph.{name}", hint="Pass text.")


def tasks_of(graph: Graph) -> dict[str, str]:
    """The tasks that a graph has answers for, some of ALL_TASKS in their order, each with its answers in words."""
    return {task: said for answers in graph.all_answers for task, said in answers.tasks.items()}


def task_of(graph: Graph) -> str | None:
    """The only task that a graph has answers for; None for a graph without answers."""
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
        >>> topology = Topology.from_coo(src=torch.tensor([0]), dst=torch.tensor([1]), num_src=2)
        >>> houses = Graph(topology=topology, labels=torch.tensor([0, 1]), num_classes=2, targets=torch.tensor([1.5, 2.0]))
        >>> for_task(houses, "regression")
        Graph(num_vertices=2, num_edges=1, num_features=0, num_classes=0, num_targets=1)
    """
    require_choice(task, (None, *ALL_TASKS), what="unknown task", where=where)
    known = tasks_of(graph)
    if task is None and len(known) > 1:
        raise InputError(
            f"the graph has answers for several tasks: {answers_of(graph)}, and no task is named (in graph '{graph.name}')",
            hint=f"Choose {' or '.join(known)}: TrainConfig(task=...), or --task.",
        )
    if task is not None and task not in known:
        hint = f"Choose {' or '.join(known)}." if known else "Give the graph labels or targets."
        raise InputError(
            f"the task does not fit the graph: task '{task}', graph '{graph.name}' has {answers_of(graph)} (in {where})",
            hint=TO_HOLD_OUT if task == LINK_TASK else hint,
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
