"""PyTorch Geometric: make a Graph of a ``Data`` object, and back. Tensors are shared where possible."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from sagann.errors import InputError, MissingDependencyError, listed, require_choice, require_type, shown
from sagann.graph import SPLIT_NAMES, Graph, Topology, validate_graph
from sagann.graph.checks import check_ids, form_of, mask_of_ids, numbered, wrong_form
from sagann.graph.feature_store import tensor_of
from sagann.graph.rows import is_sparse
from sagann.graph.task import answers_of

if TYPE_CHECKING:
    from torch_geometric.data import Data


Task = Literal["auto", "classification", "multi-label", "regression", "none"]
TASK_CHOICES = ("auto", "classification", "multi-label", "regression", "none")


def from_pyg(data: Data, *, num_classes: int | None = None, task: Task = "auto", name: str = "pyg") -> Graph:
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
        name: name of the graph.
    Raises:
        InputError: a heterogeneous object, no ``edge_index``, several splits in one mask, a ``y`` that does not fit the task or does not
            tell the task, or a value that is not valid in a graph.
    Example:
        >>> from torch_geometric.data import Data
        >>> from_pyg(Data(x=torch.eye(3), edge_index=torch.tensor([[0, 1], [1, 2]])))
        Graph(num_vertices=3, num_edges=2, num_features=3, num_classes=0)
    """
    require_choice(task, TASK_CHOICES, what="unknown task", where="from_pyg.task")
    if hasattr(data, "node_types"):
        raise InputError(
            "kind of graph not supported",
            value=f"{type(data).__name__} with vertices of several kinds",
            where="from_pyg",
            fix="Convert it with data.to_homogeneous(); its edge_type is kept.",
        )
    if not callable(getattr(data, "to_dict", None)):
        raise InputError(
            "argument has the wrong type",
            value=f"a {type(data).__name__}, expected a Data object of PyG",
            where="from_pyg",
            fix="Pass torch_geometric.data.Data(x=..., edge_index=..., y=...), or of several graphs Batch.from_data_list(list(dataset)); "
            "without PyG make sagann.Graph(topology=sagann.Topology.from_edge_index(edge_index, num_vertices), features=x, labels=y, "
            "num_classes=...).",
        )
    edge_index = getattr(data, "edge_index", None)
    _require_tensor(edge_index, "edge_index")
    if edge_index is None or edge_index.ndim != 2 or edge_index.shape[0] != 2:
        raise InputError(
            "data has no edges",
            value=f"edge_index is {None if edge_index is None else list(edge_index.shape)}, expected [2, num_edges]",
            where="from_pyg",
            fix="Set data.edge_index; of a SparseTensor adj_t, whose rows are destinations, "
            "row, col, _ = adj_t.coo() gives torch.stack([col, row]).",
        )
    fields = {key: value for key, value in data.to_dict().items() if value is not None}
    lengths = {key: len(rows) if isinstance(rows, Tensor) and rows.ndim else None for key, rows in fields.items()}
    keys = edge_data_of(lengths, edge_index.shape[1])
    y, ptr = getattr(data, "y", None), getattr(data, "ptr", None)
    num_rows, prefix = data.num_nodes or 0, ""
    if isinstance(y, Tensor) and y.ndim and ptr is not None and len(y) == len(ptr) - 1 != num_rows:
        num_rows, prefix = len(y), "graph_"
    labels, targets = _labels_or_targets(y, num_rows, task)
    if targets is not None and num_classes is not None:
        raise InputError(
            "targets have no classes",
            value=f"num_classes = {num_classes}, and y is taken as targets of a regression",
            where="from_pyg",
            fix="Pass task='classification' if y has class ids; else leave num_classes out.",
        )
    answers: dict[str, Any] = {
        f"{prefix}labels": labels,
        f"{prefix}targets": targets,
        f"num_{prefix}classes": num_classes or 0,
    }
    graph = Graph(
        topology=Topology.from_coo(
            src=edge_index[0],
            dst=edge_index[1],
            num_src=data.num_nodes or 0,
            edge_data={name: fields[key] for name, key in keys.items()},
        ),
        features=getattr(data, "x", None),
        splits=_splits(fields, data.num_nodes or 0),
        graph_ptr=ptr,
        **answers,
        name=name,
    )
    validate_graph(graph)
    taken = {"edge_index", "x", "y", "num_nodes", *keys.values(), *([] if ptr is None else ["ptr", "batch"])}
    splits = [split_field(fields, split) for split in SPLIT_NAMES]
    if left_out := {key: form_of(value) for key, value in fields.items() if key not in {*taken, *splits}}:
        warnings.warn(left_out_of("data", left_out), stacklevel=2)
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
            "a PyG object has one y",
            value=answers_of(graph),
            where=f"to_pyg of graph '{graph.name}'",
            fix="Choose one of them: to_pyg(for_task(graph, 'regression')), with sagann.graph.for_task.",
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


def _require_tensor(value: object, field: str) -> None:
    require_type(value, Tensor, where=f"data.{field}", fix=f"Pass torch.as_tensor({field}).", optional=True)


def edge_data_of(lengths: Mapping[str, int | None], num_edges: int) -> dict[str, str]:
    """The attribute of PyG that becomes the edge data of each name: edge_weight, edge_type, edge_attr, and every other edge_NAME with a row
    per edge; without edge_weight also 'weight', as NetworkX calls it. ``lengths`` are the numbers of rows, None for what is no tensor.
    """
    found = {}
    for key, length in lengths.items():
        name = key.removeprefix("edge_")
        is_plain = name == key
        # The rows of edge_label belong to the edges of edge_label_index.
        is_other = key.endswith("_index") or f"{key}_index" in lengths
        if is_other or (is_plain and (key != "weight" or "edge_weight" in lengths)):
            continue
        if length == num_edges or (not is_plain and name in ("weight", "type", "attr")):
            found[name] = key
    return found


def split_field(fields: Mapping[str, Any], split: str) -> str | None:
    """The attribute of PyG that has a split, as a mask or, where its name ends in '_idx', as ids; None without one."""
    names = (f"{split}_mask", f"{split}_idx", *(["valid_idx"] if split == "val" else []))
    return next((name for name in names if name in fields), None)


def left_out_of(source: str, kinds: Mapping[str, str]) -> str:
    """The line that names what of a source is left out, by the kind of each attribute."""
    named = [f"{shown(name, 40)} ({kind.removeprefix('torch.')})" for name, kind in kinds.items()]
    return f"Left out of {source}: {listed(named)}."


def _splits(fields: Mapping[str, Any], num_vertices: int) -> dict[str, Tensor]:
    splits = {}
    for name in SPLIT_NAMES:
        key = split_field(fields, name)
        if key is None:
            continue
        mask = fields[key]
        _require_tensor(mask, key)
        if key.endswith("_idx") and mask.ndim == 1 and not (mask.is_floating_point() or mask.dtype == torch.bool):
            ids, mask = mask, torch.zeros(num_vertices, dtype=torch.bool, device=mask.device)
            check_ids(ids, num_vertices, "vertex", where=numbered(f"data.{key}", "position"))
            mask[ids.long()] = True
        if mask.ndim != 1 or mask.dtype != torch.bool:
            if mask.ndim != 1:
                fix = f"Choose one split, for example data.{key}[:, 0]."
            else:
                fix = "Convert the mask with .bool()." if len(mask) == num_vertices else mask_of_ids(num_vertices)
            raise InputError(
                "mask is not a mask of one split",
                value=f"{mask.dtype} {list(mask.shape)}, expected torch.bool [num_vertices]",
                where=f"data.{key}",
                fix=fix,
            )
        splits[name] = mask
    return splits


def _labels_or_targets(y: Tensor | None, num_vertices: int, task: Task) -> tuple[Tensor | None, Tensor | None]:
    """``y`` as labels or as targets; the other one is None, and both are for the task 'none'."""
    _require_tensor(y, "y")
    if y is None or task == "none":
        return None, None
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim not in (1, 2) or y.shape[0] != num_vertices:
        raise InputError(
            "data has no vertex labels",
            value=f"y {list(y.shape)}, but there are {num_vertices} vertices",
            where="data.y",
            fix="Give one label or target per vertex, or per graph of a Batch (Batch.from_data_list); or pass from_pyg(..., task='none').",
        )
    found = _task_of(y) if task == "auto" else task
    if found == "regression":
        return None, y.float()
    if found == "multi-label":
        if y.ndim == 2 and _is_binary(y):
            return y.to(torch.uint8), None
        expected = "0 and 1 [num_vertices, num_classes] for several labels per vertex"
        fix = "Pass from_pyg(..., task='regression') for targets."
        if y.isnan().any():
            expected, fix = (
                f"{expected}, and no NaN",
                "Write 0 for an unknown label, or leave the vertices out: task='none'.",
            )
        raise wrong_form(y, expected, where="data.y", fix=fix)
    known = torch.where(y.isnan(), -1, y) if y.is_floating_point() else y
    if y.ndim != 1 or not _is_whole(known):
        expected = "integers [num_vertices], or 0 and 1 [num_vertices, num_classes] with task='multi-label'"
        fix = "Number the classes from 0, -1 for unknown; or pass from_pyg(..., task='regression') for targets."
        raise wrong_form(y, expected, where="data.y", fix=fix)
    return known.long(), None


def _task_of(y: Tensor) -> Task:
    """The task that the form of ``y`` tells; an InputError where it may be of two."""
    if y.ndim == 2 and _is_binary(y.nan_to_num()):
        return "multi-label"
    if y.is_floating_point() and not _is_whole(torch.where(y.isnan(), -1, y)):
        return "regression"
    if y.ndim == 1 and not y.is_floating_point():
        return "classification"
    two = "class ids, or targets" if y.ndim == 1 else "targets, or counts"
    raise InputError(
        "the task of y is not clear",
        value=f"{y.dtype} {list(y.shape)} of integers, which may be {two}",
        where="from_pyg.task",
        fix="Pass from_pyg(..., task='regression')" + (" or task='classification'." if y.ndim == 1 else "."),
    )


def _is_binary(y: Tensor) -> bool:
    return bool(((y == 0) | (y == 1)).all())


def _is_whole(y: Tensor) -> bool:
    """Whether all numbers are integers of 32 bits."""
    return not y.is_floating_point() or bool(((y == y.floor()) & (y.abs() < 2**31)).all())
