"""The arrays of vertices and of graphs that an import writes, checked as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np

from sagann.errors import DatasetError
from sagann.graph import id_dtype
from sagann.graph.checks import check_columns, check_labels, numbered, unknown_target
from sagann.storage.import_source import WRITING, CsrRows, ImportOptions, ImportSource
from sagann.storage.manifest import answers_fields
from sagann.storage.npy import dtype_name
from sagann.storage.row_source import Array, RowChunk, RowSource, as_stored, in_order_of_ids


class VertexArrays:
    """Write the arrays of vertices and of graphs, and find the numbers of vertices, features, classes and targets.

    ``open_array`` makes the writer of an array from its name, dtype and row shape: an NpyWriter, or an object with the same
    methods. ``rows_of`` names the file whose rows were counted for the number of vertices, if that is not stated. ``arrays`` holds the
    result of each writer's ``finish``, by the name of the array; ``answers`` the fields of a Manifest about labels, targets and splits.
    """

    def __init__(self, source: ImportSource, options: ImportOptions, open_array: Callable[..., Any]) -> None:
        self._options = options
        self._open = open_array
        self.rows_of = ""
        self.num_vertices = options.num_vertices if options.num_vertices is not None else source.num_vertices
        num_classes = options.num_classes if options.num_classes is not None else source.num_classes
        self._num_classes = {"labels": num_classes, "graph_labels": source.num_graph_classes}
        self._num_graphs = None if source.graph_ptr is None else len(source.graph_ptr) - 1
        self.num_features = 0
        self.layout = "none"
        self.arrays: dict[str, Any] = {}
        self.answers: dict[str, Any] = {}
        self._largest_label = {"labels": -1, "graph_labels": -1}

        features = source.features
        if isinstance(features, CsrRows):
            self._write_csr(features)
        elif features is not None:
            self.layout, self.num_features = "dense", features.row_shape[0]
            self._write_rows("features", features)
        self._write_answers("", source.labels, source.targets, source.splits)
        if source.graph_ptr is not None:
            with self._open("graph_ptr", "int64") as writer:
                writer.append(source.graph_ptr)
                self.arrays["graph_ptr"] = writer.finish()
        self._write_answers("graph_", source.graph_labels, source.graph_targets, source.graph_splits)

    def _write_answers(
        self, prefix: str, labels: RowSource | None, targets: RowSource | None, splits: Mapping[str, RowSource]
    ) -> None:
        """Write the answers of vertices, or with the prefix 'graph_' those of graphs."""
        kind, num_targets = "none", 0
        if labels is not None:
            kind = "multi" if labels.row_shape else "single"
            self._write_rows(f"{prefix}labels", labels)
        if targets is not None:
            num_targets = targets.row_shape[0] if targets.row_shape else 1
            self._write_rows(f"{prefix}targets", targets)
        for name, mask in splits.items():
            self._write_rows(f"{prefix}split_{name}", mask)
        name = f"{prefix}labels"
        found = labels.row_shape[0] if labels is not None and labels.row_shape else self._largest_label[name] + 1
        stated = self._num_classes[name]
        self.answers |= answers_fields(prefix, kind, found if stated is None else stated, num_targets, splits)

    def _write_rows(self, name: str, source: RowSource) -> None:
        unit, units, total = "vertex", "vertices", self.num_vertices
        if name.startswith("graph_"):
            unit, units, total = "graph", "graphs", self._num_graphs
        with self._open(name, source.dtype, source.row_shape) as writer:
            for rows in in_order_of_ids(self._checked(name, source, unit), source.file):
                writer.append(rows)
                self._options.progress(writer.num_rows, total, units, f"{WRITING}{name}")
            self.arrays[name] = writer.finish()
        if unit == "vertex":
            self._agree(writer.num_rows, source.file)
        else:
            self._agree_on_graphs(writer.num_rows, source.file)

    def _checked(self, name: str, source: RowSource, unit: str) -> Iterator[RowChunk]:
        for chunk in source.chunks():
            rows, where = chunk.rows, numbered(source.file, "row", chunk.first_row)
            if name == "features":
                rows = as_stored(rows, source.dtype, "feature", where=where)
            elif name in ("targets", "graph_targets"):
                rows = as_stored(rows, source.dtype, "target", where=where, fix=unknown_target(unit))
            elif name in self._largest_label:
                check_labels(rows, self._num_classes[name], where=where, error=DatasetError)
                if rows.ndim == 1:
                    self._largest_label[name] = max(self._largest_label[name], largest(rows))
            yield replace(chunk, rows=rows)

    def _write_csr(self, features: CsrRows) -> None:
        self.layout, self.num_features = "csr", features.num_features
        num_entries = int(features.indptr[-1])
        index_dtype = dtype_name(id_dtype(max(num_entries, features.num_features)))
        with ExitStack() as stack:
            indptr, indices, values = (
                stack.enter_context(self._open(f"features_{part}", dtype))
                for part, dtype in (("indptr", index_dtype), ("indices", index_dtype), ("values", "float32"))
            )
            indptr.append(features.indptr)
            for columns, entries in features.entries:
                where = numbered(features.file, "entry", indices.num_rows)
                check_columns(columns, features.num_features, where=where, error=DatasetError)
                values.append(as_stored(entries, "float32", "feature", where=where))
                indices.append(columns)
                # The rows whose last entry has been written.
                num_rows = int(np.searchsorted(features.indptr, indices.num_rows, side="right")) - 1
                self._options.progress(num_rows, len(features.indptr) - 1, "vertices", f"{WRITING}features")
            if indices.num_rows != num_entries:
                raise DatasetError(
                    "sparse features are not a CSR matrix",
                    value=f"{indices.num_rows} entries, the offsets end at {num_entries}",
                    where=features.file,
                    fix="Write the file again, with one column and one value per entry.",
                )
            for part, writer in (("indptr", indptr), ("indices", indices), ("values", values)):
                self.arrays[f"features_{part}"] = writer.finish()
        self._agree(len(features.indptr) - 1, features.file)

    def _agree(self, num_rows: int, file: str) -> None:
        if self.num_vertices is None:
            self.num_vertices, self.rows_of = num_rows, file
        elif num_rows != self.num_vertices:
            raise DatasetError(
                "number of vertices is not clear",
                value=f"{num_rows} rows, but {self.rows_of or 'num_vertices'} says {self.num_vertices}",
                where=file,
                fix="Provide one row for each vertex, or state the right number of vertices.",
            )

    def _agree_on_graphs(self, num_rows: int, file: str) -> None:
        if num_rows != self._num_graphs:
            says = "there is no graph_ptr" if self._num_graphs is None else f"graph_ptr says {self._num_graphs}"
            raise DatasetError(
                "number of graphs is not clear",
                value=f"{num_rows} rows, but {says}",
                where=file,
                fix="Provide graph_ptr [num_graphs + 1], and one row for each graph.",
            )


def largest(ids: Array) -> int:
    """The largest number of an array; -1 for an empty array."""
    return int(ids.max()) if len(ids) else -1
