"""Archives of NumPy arrays (``.npz``), never unpickled and read in slabs; graphs in one of them, with an optional description ``NAME.json`` beside it.

The arrays are those of a common exchange format: ``edge_index`` [2, E]; features dense (``features``) or CSR
(``features_indptr``, ``features_indices``, ``features_data``, ``features_shape``); ``labels`` [N] or [N, C]; ``targets`` [N] or [N, T];
``train_mask``, ``val_mask``, ``test_mask``; ``edge_type`` [E]; ``edge_weight`` [E]; ``graph_ptr`` [G + 1], and of whole graphs
``graph_labels`` [G] or [G, C], ``graph_targets`` [G] or [G, T], ``graph_train_mask``, ``graph_val_mask``, ``graph_test_mask``.
Weights, targets and the values of CSR features become float32; dense features keep a floating-point dtype.
Other arrays are left out (:func:`arrays_left_out`).

The description says whether the graph is directed and how its edges are stored. If an undirected graph stores each edge
once, the reverse edges are added. Without a description, edges are taken as they are.

An import streams the arrays. Offsets are read whole into memory, and so are arrays of rows in Fortran order, because
their rows are not contiguous. An ``edge_index`` in Fortran order streams too.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sagann.errors import DatasetError, printable
from sagann.graph import SPLIT_NAMES, Graph
from sagann.graph.checks import wrong_form
from sagann.import_config import ImportOptions
from sagann.ranges import RANGES
from sagann.storage.import_source import CHUNK_EDGES, EdgeChunk, Edges, ImportSource, with_data
from sagann.storage.importer import graph_of, import_dataset
from sagann.storage.json_fields import as_flag, as_integer, as_mapping, as_text, as_texts
from sagann.storage.regular_file import reading
from sagann.storage.rows import (
    CHUNK_BYTES,
    Array,
    RowChunk,
    Rows,
    as_edge_data,
    as_features,
    as_labels,
    as_targets,
    as_vector,
    sparse_arrays,
)

_SPARSE = ("features_indptr", "features_indices", "features_data", "features_shape")
_EDGE_DATA = {
    "weight": ("fiub", "float32"),
    "type": ("iu", "int32"),
    "split": ("iu", "int32"),
}
"By the name of edge data: kinds in which its array may be, and how it is stored."
_ANSWERS = {
    "labels": ("labels", as_labels),
    "targets": ("targets", as_targets),
    **{f"{name}_mask": (f"split_{name}", lambda rows: as_vector(rows, "b", "bool")) for name in SPLIT_NAMES},
}
_ARRAYS: Mapping[str, tuple[str, Callable[[Rows], Rows]]] = {
    "features": ("features", as_features),
    **_ANSWERS,
    "graph_ptr": ("graph_ptr", lambda rows: as_vector(rows, "iu", "int64")),
    **{f"graph_{name}": (f"graph_{array}", form) for name, (array, form) in _ANSWERS.items()},
    "graph_targets": ("graph_targets", partial(as_targets, unit="graph")),
}
"By the name of an array of vertices or graphs in an archive: its name in a dataset, and what checks its form."
_READ = {"edge_index", *(f"edge_{name}" for name in _EDGE_DATA), *_SPARSE, *_ARRAYS}
"The arrays that are read, where they are there."
_HINT = "Save the arrays in the form that docs/data.md describes."

_DAMAGED = "The file is damaged, truncated, or not an .npz archive; fetch or make it again."


@dataclass(frozen=True, kw_only=True, slots=True)
class NpzMember:
    """One array of an archive, as its header describes it."""

    file: str
    "Name inside the archive, with '.npy'."
    dtype: np.dtype[Any]
    "Data type, never object."
    shape: tuple[int, ...]
    "Shape of the array."
    data_offset: int
    "Number of bytes in the header."
    fortran: bool = False
    "Whether the array is stored in Fortran order: the last axis is the slowest one in the file."


class NpzArchive(AbstractContextManager["NpzArchive"]):
    """A pickle-free ``.npz`` file, open for reading."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with reading(self.path, what="archive", hint=_DAMAGED), ExitStack() as files_open:
            # A ZipFile that opens its file itself keeps it open for readers of rows that stopped midway.
            self._zip = zipfile.ZipFile(files_open.enter_context(self.path.open("rb")))
            files = [info.filename for info in self._zip.infolist() if info.filename.endswith(".npy")]
            self.members: Mapping[str, NpzMember] = {
                file.removesuffix(".npy"): self._member(file) for file in files
            }
            self._files_open = files_open.pop_all()

    def read(self, name: str) -> Array:
        """Read one whole array, and compare its checksum."""
        with self._opened(name) as stream:
            array = np.lib.format.read_array(stream, allow_pickle=False)
            self._require_end(stream)
        return np.ascontiguousarray(array)

    def rows(self, name: str) -> Rows:
        """An array as rows; one in Fortran order is read whole, because its rows are not contiguous."""
        member = self.members[name]

        def chunks() -> Iterator[RowChunk]:
            first = 0
            for rows in [self.read(name)] if member.fortran else self.slabs(name, CHUNK_BYTES):
                yield RowChunk(rows=rows, first_row=first)
                first += len(rows)

        return Rows(file=f"{self.path}, {name}", dtype=member.dtype, shape=member.shape, chunks=chunks)

    def slabs(
        self, name: str, slab_bytes: int, *, first: int = 0, stop: int | None = None, flat: bool = False
    ) -> Iterator[Array]:
        """Read stored rows ``first`` to ``stop``, or elements if ``flat``, in slabs of about ``slab_bytes``.

        Several arrays of one archive may be read at the same time. Rows of an array in Fortran order are stored along its last axis.
        """
        member = self.members[name]
        shape = member.shape[::-1] if member.fortran else member.shape
        row_shape = () if flat else shape[1:]
        row_bytes = member.dtype.itemsize * math.prod(row_shape)
        num_rows = math.prod(shape) if flat else shape[0]
        stop = num_rows if stop is None else stop
        # Rows without bytes are one slab, however many there are.
        step = max(1, slab_bytes // row_bytes if row_bytes else num_rows)
        with self._opened(name) as stream:
            # In a compressed member seeking reads and drops.
            stream.seek(member.data_offset + first * row_bytes)
            for start in range(first, stop, step):
                rows = np.empty((min(step, stop - start), *row_shape), member.dtype)
                left = rows.reshape(-1).view(np.uint8).data if rows.size else memoryview(b"")
                while left:
                    if not (count := stream.readinto(left)):
                        raise EOFError("it ends early")
                    left = left[count:]
                yield rows
            if stop == num_rows:
                self._require_end(stream)

    def __exit__(self, *_: object) -> None:
        self._files_open.close()

    @contextmanager
    def _opened(self, name: str) -> Iterator[Any]:
        with (
            reading(self.path, what=f"array '{name}'", hint=_DAMAGED),
            self._zip.open(self.members[name].file) as stream,
        ):
            yield stream

    def _require_end(self, stream: Any) -> None:
        # At the end of an array zipfile compares its checksum.
        if stream.read(1):
            raise ValueError("data follows its last row")

    def _member(self, file: str) -> NpzMember:
        with self._zip.open(file) as stream:
            # The headers of later versions differ in the encoding of names of fields alone, which no array here has.
            is_first = np.lib.format.read_magic(stream) == (1, 0)
            read = np.lib.format.read_array_header_1_0 if is_first else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(stream)
            if dtype.hasobject:
                raise DatasetError(
                    f"archive holds pickled objects: array '{file.removesuffix('.npy')}' has dtype {dtype} (in {self.path})",
                    hint="Unpickling a file may run any code, so sagann never does; save plain numeric arrays instead.",
                )
            offset = stream.tell()
            if offset + dtype.itemsize * math.prod(shape) != self._zip.getinfo(file).file_size:
                raise ValueError(f"'{file}' has another size than its header says")
            # Without rows it takes no bytes, however wide: NumPy refuses widths that no array has.
            np.empty((0, *shape), dtype)
        return NpzMember(
            file=file, dtype=dtype, shape=shape, data_offset=offset, fortran=fortran and len(shape) > 1
        )


def read_npz(path: str | os.PathLike[str]) -> Graph:
    """Read a graph from an ``.npz`` file into memory, and check every value.

    Args:
        path: the archive; ``NAME.json`` beside it is read where it exists.
    Returns:
        the graph; sparse features as ``torch.sparse_csr``.
    Raises:
        DatasetError: the archive is missing, damaged, pickled, or not a graph.
        InputError: a value is not valid in a graph.
    Example:
        >>> import tempfile, numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(folder + "/path.npz", edge_index=np.array([[0, 1], [1, 2]]), labels=np.array([0, 1, 1]))
        ...     read_npz(folder + "/path.npz")
        Graph(num_vertices=3, num_edges=2, num_features=0, num_classes=2)
    """
    with NpzArchive(path) as archive:
        return graph_of(_source(archive))


def import_npz(
    source: str | os.PathLike[str], out: str | os.PathLike[str], *, options: ImportOptions | None = None
) -> None:
    """Import a graph from an ``.npz`` file, in bounded memory.

    The dataset has the graph that :func:`read_npz` reads, and the names of classes and edge types. If the description says
    that each undirected edge is stored once, the graph is symmetrised, whatever ``options`` say.

    Args:
        source: the archive; ``NAME.json`` beside it is read where it exists.
        out: dataset folder to make.
        options: symmetrise, memory, and so on.
    Raises:
        DatasetError: the archive is missing, damaged, pickled, not a graph, or has a wrong value; the message names file, array and
            row.
    """
    with NpzArchive(source) as archive:
        import_dataset(_source(archive), out, options or ImportOptions())


def arrays_left_out(source: str | os.PathLike[str]) -> list[str]:
    """The arrays of an archive that an import does not read, each with its type and shape."""
    with NpzArchive(source) as archive:
        others = [(name, member) for name, member in sorted(archive.members.items()) if name not in _READ]
        return [f"{printable(name):.80} ({member.dtype!s:.40} {list(member.shape)})" for name, member in others]


def _source(archive: NpzArchive) -> ImportSource:
    described = describe_npz(archive.path)
    num_types = described["stated"].get("num_edge_types")
    data = {
        kind: as_edge_data(as_vector(archive.rows(f"edge_{kind}"), *form), kind, num_types)
        for kind, form in _EDGE_DATA.items()
        if f"edge_{kind}" in archive.members
    }
    edges = npz_edges(archive, data)
    sparse, num_features = ({}, 0) if "features" in archive.members else _sparse_features(archive)
    found = {array: form(archive.rows(name)) for name, (array, form) in _ARRAYS.items() if name in archive.members}
    return ImportSource(
        description=f"archive {archive.path.name}",
        edges=edges,
        arrays={**sparse, **found},
        **{**described, "stated": {**described["stated"], "num_features": num_features}},
    )


def describe_npz(path: Path) -> dict[str, Any]:
    """Fields of an ImportSource from the description beside an archive; without a description, the name and nothing stated."""
    described = path.with_suffix(".json")
    if not described.exists():
        return {"name": path.stem, "stated": {}}
    try:
        body = as_mapping(json.loads(described.read_bytes()))
        directed = as_flag(body.get("directed", True))
        class_names, edge_type_names = (as_texts(body.get(f"{kind}_names", [])) for kind in ("class", "edge_type"))
        return {
            "name": as_text(body.get("name", path.stem)),
            "undirected_once": not directed and "both" not in as_text(body.get("edges_stored", "both directions")),
            "num_vertices": as_integer(body["num_nodes"], "num_vertices") if "num_nodes" in body else None,
            "stated": {
                # The number of names, unless a count is stated beside them.
                "num_classes": _count(body, "num_classes", class_names),
                "num_edge_types": _count(body, "num_edge_types", edge_type_names),
                "num_graph_classes": _count(body, "num_graph_classes", ()),
                "class_names": class_names,
                "edge_type_names": edge_type_names,
                "graph_names": as_texts(body.get("graph_names", [])),
            },
        }
    except (OSError, ValueError, TypeError) as error:
        raise DatasetError(
            f"description of an archive cannot be used: {error} (in {described})",
            hint="Correct the file, or remove it to take the archive as it is.",
        ) from error


def _count(body: dict[str, Any], key: str, names: tuple[str, ...]) -> int | None:
    if key not in body:
        return len(names) or None
    value = as_integer(body[key], key)
    if names and len(names) != value:
        raise ValueError(f"{key} is {value}, but there are {len(names)} names")
    return value


def npz_edges(archive: NpzArchive, data: dict[str, Rows]) -> Edges:
    """The edges of the array ``edge_index`` [2, E], with edge data from other arrays."""
    member = archive.members.get("edge_index")
    if member is None or len(member.shape) != 2 or member.shape[0] != 2:
        found = (
            f"no array 'edge_index' [2, E]; it holds {', '.join(sorted(archive.members)) or 'nothing'}"
            if member is None
            else f"edge_index has the shape {list(member.shape)}, expected [2, E]"
        )
        raise DatasetError(
            f"archive has no edges: {found} (in {archive.path})",
            hint="Save the edges as edge_index, first row sources, second row destinations.",
        )
    if member.dtype.kind not in "iu":
        where = f"{archive.path}, array 'edge_index'"
        raise wrong_form(member, "integers [2, E]", where=where, hint=_HINT, error=DatasetError)
    return with_data(_ends(archive), member.shape[1], data)


def _ends(archive: NpzArchive) -> Iterator[EdgeChunk]:
    name, member = "edge_index", archive.members["edge_index"]
    num_edges, first, item_bytes = member.shape[1], 0, member.dtype.itemsize
    pairs: Iterator[Any]
    if member.fortran:
        # In Fortran order the two ends of an edge are adjacent.
        pairs = (slab.T.copy() for slab in archive.slabs(name, 2 * CHUNK_EDGES * item_bytes))
    else:
        # Both rows are read as plain numbers: the sources from the start, the destinations from the middle.
        halves = ((0, num_edges), (num_edges, 2 * num_edges))
        pairs = zip(
            *(archive.slabs(name, CHUNK_EDGES * item_bytes, first=at, stop=stop, flat=True) for at, stop in halves),
            strict=True,
        )
    for src, dst in pairs:
        yield EdgeChunk(src=_as_ids(src), dst=_as_ids(dst), file=f"{archive.path}, {name}", first_row=first)
        first += len(src)


def _as_ids(ids: Array) -> Array:
    # Numba compiles once for each dtype and byte order; unsigned ids beyond 63 bits turn negative, and are refused.
    return ids if ids.dtype == np.int32 else ids.astype(np.int64, copy=False)


def _sparse_features(archive: NpzArchive) -> tuple[dict[str, Rows], int]:
    """The three arrays of sparse features, and the number of columns; none and 0 for an archive without them."""
    missing = [part for part in _SPARSE if part not in archive.members]
    if len(missing) == len(_SPARSE):
        return {}, 0
    if missing:
        raise DatasetError(
            f"sparse features are not complete: missing {', '.join(missing)} (in {archive.path})",
            hint="Save all four arrays, or none.",
        )
    offsets, columns, shape = (as_vector(archive.rows(_SPARSE[at]), "iu", "int64") for at in (0, 1, 3))
    values = as_vector(archive.rows("features_data"), "fiub", "float32")
    num_rows, num_columns = archive.read("features_shape").tolist() if shape.shape == (2,) else (-1, -1)
    if num_rows != offsets.shape[0] - 1 or num_columns not in RANGES["num_features"]:
        raise DatasetError(
            f"offsets and shape of sparse features differ: features_shape is {[num_rows, num_columns]}, but there are "
            f"offsets for {offsets.shape[0] - 1} rows; the number of columns is {RANGES['num_features']} (in {archive.path}, features)",
            hint=_HINT,
        )
    return sparse_arrays(offsets, columns, values, num_columns=num_columns), num_columns
