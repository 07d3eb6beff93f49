"""PyTorch Geometric: make a Graph of a ``Data`` object, and back. Tensors are shared where possible.

:class:`Attributes` is what one object has, whether it is in memory or was saved (:mod:`sagann.interop.pyg_file`): the same rules say what becomes
of each attribute.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from sagann.errors import DatasetError, InputError, MissingDependencyError, listed, require_choice, shown
from sagann.graph import SPLIT_NAMES, Graph, Topology, validate_graph
from sagann.graph.checks import check_ids, form_of, mask_of_ids, numbered, wrong_form
from sagann.graph.feature_store import tensor_of
from sagann.graph.graph import answers_of
from sagann.graph.rows import is_sparse
from sagann.storage.manifest import SAFE_NAME

if TYPE_CHECKING:
    from torch_geometric.data import Data


Task = Literal["auto", "classification", "multi-label", "regression", "none"]
TASK_CHOICES = ("auto", "classification", "multi-label", "regression", "none")


def from_pyg(
    data: Data, *, num_classes: int | None = None, task: Task = "auto", split: int | None = None, name: str = "pyg"
) -> Graph:
    """Make a Graph of a PyG ``Data`` (or ``Batch``) object.

    The graph takes ``edge_index`` (an edge goes from the first row to the second), ``x``, ``y``, the masks ``train_mask``,
    ``val_mask`` and ``test_mask`` (or ids, ``train_idx`` and so on), and ``ptr`` of a Batch. Every tensor ``edge_NAME`` with one row per edge
    becomes edge data NAME: ``edge_weight`` becomes 'weight', for example, and so does ``weight``. A warning names other fields (``pos``,
    ``edge_label`` with ``edge_label_index``, ...), which are left out. Edges are sorted by destination, then source; the input is not changed.

    ``task`` says what ``y`` is; a single column [V, 1] is taken as [V]:

    - ``classification``: labels. Integers [V] from 0, -1 for unknown; as floats, NaN is unknown too.
    - ``multi-label``: labels. 0 and 1 of any type, [V, C].
    - ``regression``: targets. Numbers of any type, [V] or [V, T], kept as float32.
    - ``none``: ``y`` is left out.
    - ``auto``: integers or booleans [V] are labels, a matrix of 0 and 1 is multi-label, floats with a fraction are targets. Anything else
      is refused: floats [V] that are all integers may be class ids or targets.

    Of a Batch of many graphs (``Batch.from_data_list(dataset)``), a ``y`` with a row per graph becomes ``graph_labels`` or
    ``graph_targets``, by the same rules.

    Args:
        data: a homogeneous ``Data`` with ``edge_index``.
        num_classes: number of classes; default one more than the largest label, or the number of columns.
        task: what ``y`` is: 'classification', 'multi-label', 'regression', 'none', or 'auto' where its form tells.
        split: column of masks that hold several splits.
        name: name of the graph.
    Raises:
        InputError: a heterogeneous object, no ``edge_index``, several splits in one mask, a ``y`` that does not fit the task or does not
            tell the task, or a value that is not valid in a graph.
    Example:
        >>> from torch_geometric.data import Data
        >>> from_pyg(Data(x=torch.eye(3), edge_index=torch.tensor([[0, 1], [1, 2]])))
        Graph(num_vertices=3, num_edges=2, num_features=3, num_classes=0)
    """
    if hasattr(data, "node_types"):
        raise InputError(
            f"kind of graph not supported: {type(data).__name__} with vertices of several kinds (in from_pyg)",
            hint="Convert it with data.to_homogeneous(); its edge_type is kept.",
        )
    if not callable(getattr(data, "to_dict", None)):
        raise InputError(
            f"argument has the wrong type: a {type(data).__name__}, expected a Data object of PyG (in from_pyg)",
            hint="Pass torch_geometric.data.Data(x=..., edge_index=..., y=...), or of several graphs Batch.from_data_list(list(dataset)); "
            "without PyG make sagann.Graph(topology=sagann.Topology.from_edge_index(edge_index, num_vertices), features=x, labels=y, "
            "num_classes=...).",
        )
    values = {key: value for key, value in data.to_dict().items() if value is not None}
    attributes = Attributes(values=values, task=task, split=split)
    attributes.graph_ptr = attributes.tensor("ptr")
    attributes.num_vertices = data.num_nodes or 0
    attributes.taken |= {"num_nodes"} | ({"batch"} if "ptr" in values else set())
    edge_index = attributes.edge_index()
    answers: dict[str, Any] = attributes.answers()
    if num_classes is not None and any(key.endswith("targets") for key in answers):
        value = f"num_classes = {num_classes}, and y is taken as targets of a regression"
        hint = "Pass task='classification' if y has class ids; else leave num_classes out."
        raise attributes.refused("targets have no classes", "y", value, hint)
    # Also where there are no answers: a model that predicts them has as many outputs.
    of = "graph_" * any(key.startswith("graph_") for key in answers)
    answers[f"num_{of}classes"] = num_classes or 0
    graph = Graph(
        topology=Topology.from_coo(
            src=edge_index[0],
            dst=edge_index[1],
            num_src=attributes.num_vertices or 0,
            edge_data=attributes.edge_data(edge_index.shape[1]),
        ),
        features=attributes.tensor("x"),
        splits=attributes.splits(),
        graph_ptr=attributes.graph_ptr,
        name=name,
        **answers,
    )
    validate_graph(graph)
    if left_out := attributes.left_out():
        warnings.warn(left_out, stacklevel=2)
    return graph


def to_pyg(graph: Graph) -> Data:
    """Make a PyG ``Data`` object of a Graph; edges come in CSC order.

    Sparse features become dense, and a feature store is read into memory. Edge data NAME becomes ``edge_NAME``:
    'weight' becomes ``edge_weight``, for example. Labels, or targets, of vertices or of graphs, become ``y``.

    Raises:
        InputError: the graph has more than one of these.
        MissingDependencyError: PyG is not installed.
    """
    try:
        from torch_geometric.data import Data
    except ImportError as error:
        raise MissingDependencyError("torch_geometric", extra="pyg", feature="to_pyg") from error
    answers = (graph.labels, graph.targets, graph.graph_labels, graph.graph_targets)
    ys = [rows for rows in answers if rows is not None]
    if len(ys) > 1:
        raise InputError(
            f"a PyG object has one y: {answers_of(graph)} (in to_pyg of graph '{graph.name}')",
            hint="Choose one of them: to_pyg(for_task(graph, 'regression')), with sagann.graph.for_task.",
        )
    topology = graph.topology
    fields: dict[str, Any] = {f"edge_{name}": rows for name, rows in topology.edge_data.items()}
    fields |= {f"{name}_mask": mask for name, mask in graph.splits.items()}
    if graph.graph_ptr is not None:
        fields["ptr"] = graph.graph_ptr
    if graph.features is not None:
        x = tensor_of(graph.features)
        fields["x"] = x.to_dense() if is_sparse(x) else x
    if ys:
        (fields["y"],) = ys
    edge_index = torch.stack([topology.indices.long(), topology.edge_dst().long()])
    return Data(edge_index=edge_index, num_nodes=graph.num_vertices, **fields)


@dataclass(kw_only=True)
class Attributes:
    """The attributes of a PyG object on their way into a graph, and those of them that it takes."""

    values: Mapping[str, Any]
    "The attributes by name, without those that are None."
    task: Task
    "What ``y`` is."
    split: int | None = None
    "Column of masks that hold several splits."
    path: str = ""
    "The file that the object was saved in; empty for an object in memory."
    num_vertices: int | None = None
    "Number of vertices; None where nothing says it."
    graph_ptr: Tensor | None = None
    "Offsets of several graphs among the vertices, int64 [G + 1]."
    others: Mapping[str, Any] = field(default_factory=dict)
    "Attributes that have a row neither for each vertex, nor for each edge or graph."
    taken: set[str] = field(default_factory=set)
    "Names of the attributes that the graph takes."

    def __post_init__(self) -> None:
        require_choice(self.task, TASK_CHOICES, what="unknown task", where="task (--task)")

    def where(self, name: str) -> str:
        """An attribute, for errors."""
        return f"{self.path}, {name}" if self.path else f"data.{name}"

    @property
    def error(self) -> type[InputError]:
        """The class of errors about attributes."""
        return DatasetError if self.path else InputError

    def refused(self, what: str, name: str, value: str, hint: str) -> InputError:
        """The error of an attribute."""
        return self.error(f"{what}: {value} (in {self.where(name)})", hint=hint)

    def without_answers(self, y: Tensor, rows: str) -> InputError:
        """The error of a ``y`` that has no row for each of these."""
        return self.refused(
            "there is no label for each vertex, nor for each graph",
            "y",
            f"y {list(y.shape)}, but there are {rows}",
            "Give one label or target per vertex, or per graph (of a Batch: Batch.from_data_list); or leave y out: task='none' (--task none).",
        )

    def tensor(self, name: str) -> Tensor | None:
        """The tensor of this name, which counts as taken; None without one."""
        value = self.values.get(name)
        if value is None:
            return None
        self.taken.add(name)
        if not isinstance(value, Tensor):
            raise self.refused(
                "an attribute is no tensor", name, form_of(value), f"Convert it: torch.as_tensor({name})."
            )
        if self.path and (value.layout != torch.strided or value.is_quantized or value.is_nested):
            hint = "Save it as a plain tensor: x.detach().cpu().to_dense().contiguous()."
            raise self.refused("a tensor is of a kind that is not read", name, form_of(value), hint)
        return value

    def edge_index(self) -> Tensor:
        """The ids of the edges, [2, E]."""
        ids = self.tensor("edge_index")
        if ids is None or ids.ndim != 2 or ids.shape[0] != 2 or ids.is_floating_point():
            raise self.refused(
                "there are no edges",
                "edge_index",
                f"edge_index is {'missing' if ids is None else form_of(ids)}, expected integers [2, num_edges]; there are {listed([*map(shown, self.values)])}",
                "Set data.edge_index; of a SparseTensor adj_t, whose rows are destinations, row, col, _ = adj_t.coo() gives torch.stack([col, row]).",
            )
        return ids

    def edge_data(self, num_edges: int) -> dict[str, Tensor]:
        """Edge data by name: edge_weight, edge_type, edge_attr, and every other edge_NAME with a row per edge; without edge_weight also
        'weight', as NetworkX calls it.
        """
        found: dict[str, Tensor] = {}
        for key, value in self.values.items():
            name = key.removeprefix("edge_")
            is_plain = name == key
            # The rows of edge_label belong to the edges of edge_label_index.
            is_other = key.endswith("_index") or f"{key}_index" in self.values or not SAFE_NAME.fullmatch(name)
            if is_other or (is_plain and (key != "weight" or "edge_weight" in self.values)):
                continue
            if not isinstance(value, Tensor) or not value.ndim:
                continue
            if len(value) == num_edges or (not is_plain and name in ("weight", "type", "attr")):
                self.tensor(key)
                found[name] = value
        return found

    def answers(self) -> dict[str, Tensor]:
        """``y`` as labels or targets of vertices or of whole graphs, by the field of a graph; nothing for the task 'none'."""
        y = None if self.task == "none" else self.tensor("y")
        if y is None:
            return {}
        num_graphs = None if self.graph_ptr is None else len(self.graph_ptr) - 1
        of_graphs = y.ndim > 0 and len(y) == num_graphs != self.num_vertices
        y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
        if y.ndim not in (1, 2) or not (of_graphs or self.num_vertices in (None, len(y))):
            raise self.without_answers(y, f"{self.num_vertices} vertices")
        of = "graph_" * of_graphs
        known = torch.where(y.isnan(), -1, y) if y.is_floating_point() else y
        is_whole = not y.is_floating_point() or bool(((known == known.floor()) & (known.abs() < 2**31)).all())
        is_matrix, task = y.ndim == 2, self.task
        if task == "auto":
            if is_matrix and _is_binary(y.nan_to_num()):
                task = "multi-label"
            elif not is_whole:
                task = "regression"
            elif not is_matrix and not y.is_floating_point():
                task = "classification"
            else:
                two = "targets, or counts" if is_matrix else "class ids, or targets"
                hint = "Pass task='regression' (--task regression)" + (
                    "." if is_matrix else " or task='classification'."
                )
                value = f"{form_of(y)} of integers, which may be {two}"
                raise self.refused("the task of y is not clear", "y", value, hint)
        if task == "regression":
            return {f"{of}targets": y.float()}
        if task == "multi-label" and is_matrix and _is_binary(y):
            return {f"{of}labels": y.to(torch.uint8)}
        if task == "classification" and not is_matrix and is_whole:
            return {f"{of}labels": known.long()}
        expected = "integers [n], or 0 and 1 [n, num_classes] with task='multi-label'"
        hint = (
            "Number the classes from 0, -1 for unknown; or pass task='regression' (--task regression) for targets."
        )
        if task == "multi-label":
            expected = "0 and 1 [n, num_classes] for several labels each"
            hint = "Pass task='regression' (--task regression) for targets."
            if y.isnan().any():
                hint = "Write 0 for an unknown label, or leave y out: task='none' (--task none)."
                expected += ", and no NaN"
        raise wrong_form(y, expected, where=self.where("y"), hint=hint, error=self.error)

    def splits(self) -> dict[str, Tensor]:
        """The masks of the splits, by name."""
        splits: dict[str, Tensor] = {}
        is_chosen = False
        for name in SPLIT_NAMES:
            keys = (f"{name}_mask", f"{name}_idx", *(["valid_idx"] if name == "val" else []))
            key = next((key for key in keys if key in self.values), "")
            is_ids = key.endswith("_idx")
            # Ids in one of several graphs count its vertices anew.
            if not key or (is_ids and (self.graph_ptr is not None or self.num_vertices is None)):
                continue
            mask = self.tensor(key)
            assert mask is not None
            if is_ids and mask.ndim == 1 and not (mask.is_floating_point() or mask.dtype == torch.bool):
                ids, mask = mask, torch.zeros(self.num_vertices or 0, dtype=torch.bool, device=mask.device)
                check_ids(ids, len(mask), "vertex", where=numbered(self.where(key), "position"), error=self.error)
                mask[ids.long()] = True
            if mask.ndim == 2 and mask.dtype == torch.bool:
                if self.split not in range(mask.shape[1]):
                    raise self.refused(
                        "there are several splits",
                        key,
                        f"{mask.shape[1]} columns, and {'none' if self.split is None else self.split} is chosen",
                        f"Choose a column from 0 to {mask.shape[1] - 1}: split= (--split-scheme).",
                    )
                mask, is_chosen = mask[:, self.split], True
            elif mask.ndim != 1 or mask.dtype != torch.bool:
                is_whole = mask.ndim == 1 and len(mask) == self.num_vertices
                hint = "Convert the mask with .bool()." if is_whole else mask_of_ids(self.num_vertices or 0)
                value = f"{form_of(mask)}, expected torch.bool [num_vertices]"
                raise self.refused("mask is not a mask of one split", key, value, hint)
            splits[name] = mask
        if self.split is not None and not is_chosen:
            value = f"column {self.split} is chosen, and there are no masks of several columns"
            raise self.refused(
                "there is no split to choose", "train_mask", value, "Leave split= (--split-scheme) out."
            )
        return splits

    def left_out(self) -> str:
        """The line that names the attributes that the graph does not take; empty without any."""
        found = {**self.values, **self.others}
        others = {key: form_of(value) for key, value in found.items() if key not in self.taken}
        return left_out_of(Path(self.path).name if self.path else "data", others) if others else ""


def left_out_of(source: str, kinds: Mapping[str, str]) -> str:
    """The line that names what of a source is left out, by the kind of each attribute."""
    named = [f"{shown(name, 40)} ({kind.removeprefix('torch.')})" for name, kind in kinds.items()]
    return f"Left out of {source}: {listed(named)}."


def _is_binary(y: Tensor) -> bool:
    return bool(((y == 0) | (y == 1)).all())
