"""Graphs that PyG has saved: a ``Data`` object in a file of ``torch.save``, read without PyG and without running its code.

Three forms are known: the object itself, or its ``to_dict()``; ``(data, slices)`` and ``(dict, slices, class)``, as datasets of PyG
keep in ``processed/data.pt``, of one graph or of many. Tensors are mapped from the file, so an import needs little memory.

References:
    Fey and Lenssen, Fast Graph Representation Learning with PyTorch Geometric, ICLR workshop 2019.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from sagann.errors import DatasetError, require_choice, shown
from sagann.graph import SPLIT_NAMES, Graph
from sagann.graph.checks import wrong_form
from sagann.interop.pyg import TASK_CHOICES, Task, edge_data_of, left_out_of, split_field
from sagann.interop.pyg_slices import read_slices
from sagann.interop.torch_file import Saved, array_of, read_torch_file
from sagann.ranges import RANGES
from sagann.storage.edge_source import EdgeChunk, JoinedEdges
from sagann.storage.import_source import ImportOptions, ImportSource
from sagann.storage.importer import import_dataset
from sagann.storage.manifest import SAFE_NAME
from sagann.storage.read_source import graph_of
from sagann.storage.row_source import (
    Array,
    ArrayRows,
    LabelRows,
    RowSource,
    feature_dtype,
    label_rows,
    masks_of,
    target_rows,
)

_ALLOWED = {
    f"torch_geometric.data.{name}": Saved
    for name in ("data.Data", "data.DataEdgeAttr", "data.DataTensorAttr", "storage.GlobalStorage")
}
"What a saved ``Data`` names, and the file of a dataset."
_ADVICE = {
    "torch_geometric.datasets.": "This is a dataset object; save its graph: torch.save(dataset[0].to_dict(), FILE).",
    "torch_geometric.data.hetero_data.": "Convert the graph with data.to_homogeneous(), and save torch.save(data.to_dict(), FILE).",
    "torch_geometric.data.batch.": "Save the graphs as a dataset does: InMemoryDataset.save(batch.to_data_list(), FILE).",
    "torch_sparse.": "Save edge_index instead of adj_t: row, col, _ = data.adj_t.coo(), torch.stack([col, row]).",
}
_CHUNK_EDGES = 2**20
_MOST_NAMES = 10


def read_pyg(path: str | os.PathLike[str], *, split: int | None = None, task: Task = "auto") -> Graph:
    """Read a graph, or many, that PyG has saved, and check every value. PyG need not be installed, and nothing in the file is run.

    The graph takes ``edge_index``, ``x``, ``y``, the masks ``train_mask``, ``val_mask`` and ``test_mask``, and each
    ``edge_NAME`` with a row per edge as edge data NAME, as :func:`sagann.interop.from_pyg` does. A warning names what is left out. Many graphs
    become one, with ``graph_ptr``; a ``y`` with a row per graph becomes ``graph_labels`` or ``graph_targets``.

    Args:
        path: file that ``torch.save`` has written: a ``Data``, its ``to_dict()``, or the file of a dataset.
        split: column of masks that hold several splits.
        task: what ``y`` is, as of :func:`sagann.interop.from_pyg`. With 'auto', integers are labels and a floating matrix of 0 and 1 is
            multi-label; other floats are refused, because they may be class ids or targets.
    Returns:
        the graph, in memory.
    Raises:
        DatasetError: the file is missing or damaged, names a class or function that is not read, or has no graph.
        InputError: a value is not valid in a graph.
    Example:
        >>> import tempfile, torch
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     torch.save({"edge_index": torch.tensor([[0, 1], [1, 2]]), "x": torch.eye(3)}, folder + "/path.pt")
        ...     read_pyg(folder + "/path.pt")
        Graph(num_vertices=3, num_edges=2, num_features=3, num_classes=0)
    """
    return graph_of(_Source(Path(path), split, task, lambda text: warnings.warn(text, stacklevel=5)).source())


def import_pyg(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    split: int | None = None,
    task: Task = "auto",
    options: ImportOptions | None = None,
    say: Callable[[str], None] = warnings.warn,
) -> None:
    """Import a graph, or many, that PyG has saved into a dataset folder, in bounded memory.

    Args:
        source: the file, as of :func:`read_pyg`.
        out: dataset folder to make.
        split: column of masks that hold several splits.
        task: what ``y`` is, as of :func:`read_pyg`.
        options: symmetrise, memory, and so on.
        say: gets a line that names what the dataset does not take; by default a warning.
    Raises:
        DatasetError: as :func:`read_pyg`; the message names file, attribute and row.
    """
    import_dataset(_Source(Path(source), split, task, say).source(), out, options or ImportOptions())


class _Source:
    """The attributes of one saved Data, on their way into a graph."""

    def __init__(self, path: Path, split: int | None, task: Task, say: Callable[[str], None]) -> None:
        require_choice(task, TASK_CHOICES, what="unknown task", where="--task (task= in Python)")
        self._value = read_torch_file(path, _ALLOWED, advice=_ADVICE)
        self._path, self._split, self._task, self._say = path, split, task, say
        fields, slices = self._saved()
        self._fields = {name: each for name, each in fields.items() if each is not None}
        self._slices = read_slices(slices, self._fields, self._tensor, self._refused)
        self._taken: set[str] = set()

    def source(self) -> ImportSource:
        """What is imported. What is left out is said."""
        edges = self._edges()
        slices, num_vertices = self._slices, self._num_vertices()
        x = self._array("x")
        if slices is not None and x is not None and not slices.is_of_vertices("x"):
            raise self._refused("features and vertices differ in number", "x has other slices than the vertices")
        found = ImportSource(
            name=self._path.stem,
            description=f"PyG file {self._path.name}",
            edges=edges,
            features=None if x is None else self._rows("x", x, feature_dtype(x, self._where("x"))),
            splits=self._splits(num_vertices if x is None else len(x)),
            num_vertices=num_vertices,
            graph_ptr=None if slices is None else slices.graph_ptr,
            **self._answers(num_vertices),
        )
        if left_out := {name: self._kind(name) for name in self._fields if name not in self._taken}:
            self._say(left_out_of(self._path.name, left_out))
        return found

    def _saved(self) -> tuple[Mapping[str, Any], Mapping[str | int, Any]]:
        """The attributes by name, and their slices; no slices of a single graph."""
        slices: Mapping[str | int, Any] = {}
        match self._value:
            case (saved, None | dict() as given) | (saved, None | dict() as given, _):
                slices = given or {}
            case saved:
                pass
        if isinstance(saved, Saved):
            # Since PyG 2 the attributes lie in a store of the object.
            saved = saved.state
            store = saved.get("_store") if isinstance(saved, dict) else None
            if isinstance(store, Saved) and isinstance(store.state, dict):
                saved = store.state.get("_mapping")
        if not isinstance(saved, dict) or not all(isinstance(name, str) for name in saved):
            raise self._refused(
                "the file has no graph", f"{_kind(self._value)}, expected a Data object or its to_dict()"
            )
        return saved, slices

    def _edges(self) -> JoinedEdges:
        ids = self._array("edge_index")
        if ids is None or ids.ndim != 2 or ids.shape[0] != 2 or ids.dtype.kind not in "iu":
            found = "none" if ids is None else f"{ids.dtype} {list(ids.shape)}"
            names = ", ".join(map(shown, list(self._fields)[:_MOST_NAMES])) or "nothing"
            raise self._refused(
                "the file has no edges", f"edge_index is {found}, expected integers [2, E]; there are {names}"
            )
        data: dict[str, RowSource] = {}
        arrays = {name: self._tensor(value) for name, value in self._fields.items()}
        lengths = {name: len(rows) if rows is not None and rows.ndim else None for name, rows in arrays.items()}
        for key, name in edge_data_of(lengths, ids.shape[1]).items():
            rows = arrays[name]
            if rows is None or rows.ndim == 0 or not SAFE_NAME.fullmatch(key):
                continue
            if self._slices is not None and not self._slices.is_of_edges(name):
                continue
            if rows.dtype.kind not in ("iu" if key == "type" else "iuf"):
                expected = "integers [E]" if key == "type" else "numbers [E, ...]"
                fix = "Convert it, or delete it, and save the graph again."
                raise wrong_form(rows, expected, where=self._where(name), fix=fix, error=DatasetError)
            self._taken.add(name)
            data[key] = self._rows(name, rows, "int64" if key == "type" else _data_dtype(rows))
        where = self._where("edge_index")
        ends = (
            self._ends(ids)
            if self._slices is None
            else self._slices.ends(ids, chunk_edges=_CHUNK_EDGES, where=where)
        )
        return JoinedEdges(ends=ends, num_edges=ids.shape[1], data=data)

    def _ends(self, ids: Array) -> Iterator[EdgeChunk]:
        for first in range(0, ids.shape[1], _CHUNK_EDGES):
            src, dst = ids[:, first : first + _CHUNK_EDGES].astype(np.int64)
            yield EdgeChunk(src=src, dst=dst, file=self._where("edge_index"), first_row=first)

    def _num_vertices(self) -> int | None:
        if self._slices is not None:
            self._taken |= {"num_nodes", "_num_nodes", "__num_nodes__"}
            return int(self._slices.graph_ptr[-1])
        # PyG 1 has another name for it.
        for name in ("num_nodes", "__num_nodes__"):
            if name in self._fields:
                self._taken.add(name)
                value = self._fields[name]
                # The file of a dataset has a list, of one number.
                value = value[0] if isinstance(value, list) and len(value) == 1 else value
                if type(value) is not int or value not in RANGES["num_vertices"]:
                    found = shown(value) if type(value) is int else _kind(value)
                    expected = f"expected {RANGES['num_vertices']}"
                    raise self._refused("the number of vertices is no count", f"{name} is {found}, {expected}")
                return value
        return None

    def _answers(self, num_vertices: int | None) -> dict[str, Any]:
        """``y`` as labels or targets of vertices or of whole graphs, by the field of a source; nothing for the task 'none'."""
        y = None if self._task == "none" else self._array("y")
        if y is None:
            return {}
        if y.dtype == np.bool_:
            y = y.view(np.uint8)
        of, noun = "", "vertex"
        if self._slices is not None and not self._slices.is_of_vertices("y"):
            of, noun = "graph_", "graph"
            rows = self._slices.per_graph("y", y)
            if rows is None:
                raise self._refused(
                    "the labels are neither those of vertices nor those of graphs",
                    f"y {list(y.shape)}, and there are {self._slices.num_graphs} graphs with {num_vertices} vertices",
                    fix="Give each graph the same number of them and save the dataset again, or leave y out with --task none (task='none').",
                )
            num_vertices, y = None, rows
        labels, targets = self._labels_or_targets(y, num_vertices, noun)
        return {f"{of}labels": labels, f"{of}targets": targets}

    def _labels_or_targets(
        self, y: Array, num_vertices: int | None, noun: str
    ) -> tuple[RowSource | None, RowSource | None]:
        """``y`` as labels or as targets of each vertex or graph (``noun``); the other one is None."""
        x = self._array("x") if noun == "vertex" else None
        rows = len(x) if x is not None and x.ndim else num_vertices
        if y.ndim == 0 or (rows is not None and len(y) != rows):
            raise self._refused(
                "the labels are not those of vertices",
                f"y {list(y.shape)}, and there are {rows} vertices",
                fix="sagann trains vertex tasks: give a label or target for each vertex and save the graph again, or leave y out with --task "
                "none (task='none').",
            )
        is_matrix = y.ndim == 2 and y.shape[1] > 1
        task = self._task
        if task == "auto":
            if y.dtype.kind == "f" and not is_matrix and y.ndim <= 2:
                raise self._refused(
                    "it is not clear what the labels are",
                    f"y is {y.dtype} {list(y.shape)}: numbers of classes, or numbers to predict",
                    fix="Say it with --task classification or --task regression (task= in Python).",
                )
            task = "multi-label" if is_matrix else "classification"
        if task == "regression":
            return None, target_rows(self._rows("y", y, "float32"), y)
        if is_matrix != (task == "multi-label") or y.ndim > 2:
            expected = (
                f"a row of 0 and 1 for each {noun}" if task == "multi-label" else f"one class for each {noun}"
            )
            raise self._refused(
                "the labels do not fit the task",
                f"y {list(y.shape)}; {task} has {expected}",
                fix="Say another task with --task (task= in Python).",
            )
        found = self._rows("y", y, "float64" if y.dtype.kind == "f" else "int64")
        return LabelRows(rows=found, row_shape=y.shape[1:]) if is_matrix else label_rows(found, y), None

    def _splits(self, num_vertices: int | None) -> dict[str, RowSource]:
        splits: dict[str, RowSource] = {}
        chosen = False
        for name in SPLIT_NAMES:
            key = split_field(self._fields, name)
            is_ids = key is not None and key.endswith("_idx")
            # Ids in many graphs count the vertices of each anew.
            if key is None or (is_ids and (num_vertices is None or self._slices is not None)):
                continue
            if self._slices is not None and not self._slices.is_of_vertices(key):
                continue
            mask = self._array(key)
            if mask is None:
                continue
            if is_ids and mask.ndim == 1 and mask.dtype.kind in "iu" and num_vertices is not None:
                splits |= masks_of({name: [self._rows(key, mask, "int64")]}, num_vertices)
                continue
            if mask.ndim == 2 and mask.dtype == np.bool_:
                if self._split is None or not 0 <= self._split < mask.shape[1]:
                    raise self._refused(
                        "the file has several splits",
                        f"{key} has {mask.shape[1]} columns, and {'none' if self._split is None else self._split} is chosen",
                        fix=f"Choose a column from 0 to {mask.shape[1] - 1}: --split-scheme, or split= in Python.",
                    )
                mask, chosen = mask[:, self._split], True
            elif mask.ndim != 1 or mask.dtype != np.bool_:
                expected = "bool [num_vertices], or [num_vertices, splits]"
                fix = "Save it as a mask, data.train_mask.bool()."
                raise wrong_form(mask, expected, where=self._where(key), fix=fix, error=DatasetError)
            splits[name] = self._rows(key, mask, "bool")
        if self._split is not None and not chosen:
            raise self._refused(
                "there is no split to choose",
                f"column {self._split} is chosen, and there are no masks of several columns",
                fix="Leave --split-scheme out; in Python, split=.",
            )
        return splits

    def _tensor(self, value: object) -> Array | None:
        return array_of(value, str(self._path))

    def _array(self, name: str) -> Array | None:
        """The tensor of this name, which counts as taken; None without one."""
        if name not in self._fields:
            return None
        self._taken.add(name)
        array = self._tensor(self._fields[name])
        if array is None:
            raise self._refused("an attribute is no tensor", f"{name} is {_kind(self._fields[name])}")
        return array

    def _rows(self, name: str, array: Array, dtype: str) -> ArrayRows:
        row_bytes = 8 * max(1, int(np.prod(array.shape[1:], dtype=np.int64)))
        return ArrayRows(array=array, file=self._where(name), dtype=dtype, chunk_rows=max(1, 2**24 // row_bytes))

    def _where(self, name: str) -> str:
        return f"{self._path}, {name}"

    def _kind(self, name: str) -> str:
        value = self._fields[name]
        return (
            f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
            if isinstance(value, Tensor)
            else _kind(value)
        )

    def _refused(
        self, what: str, value: str, fix: str = "Save the graph with torch.save(data.to_dict(), FILE)."
    ) -> DatasetError:
        return DatasetError(what, value=value, where=str(self._path), fix=fix)


def _data_dtype(rows: Array) -> str:
    """The type in which edge data is stored: its own, if the format has it."""
    return rows.dtype.name if rows.dtype.name in ("int32", "int64", "float16", "float32", "float64") else "float32"


def _kind(value: object) -> str:
    """What a value is, in words; its content may be endless, so it is not shown."""
    return "an object of PyG" if isinstance(value, Saved) else f"a {type(value).__name__}"
