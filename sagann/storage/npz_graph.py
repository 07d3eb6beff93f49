"""Archives of NumPy arrays (``.npz``), never unpickled and read in slabs; graphs in one of them, with an optional description ``NAME.json`` beside it.

The arrays are those that docs/data.md names; others are left out (:func:`arrays_left_out`). Weights, targets and the values of CSR features become
float32; dense features keep a floating-point dtype. The description says whether the graph is directed and how its edges are stored. If an
undirected graph stores each edge once, the reverse edges are added. Without a description, edges are taken as they are.

An import streams the arrays. Those in Fortran order but edge_index are read whole, because their rows are not contiguous.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
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
from sagann.storage.rows import Array, RowChunk, Rows, chunk_rows, sparse_arrays

_SPARSE = ("features_indptr", "features_indices", "features_data", "features_shape")
_EDGE_DATA = {"edge_weight": "float32", "edge_type": "int32", "edge_split": "int32"}
"How arrays of edges are stored."
_ANSWERS = {"labels": "labels", "targets": "targets", **{f"{name}_mask": f"split_{name}" for name in SPLIT_NAMES}}
_ARRAYS = {
    "features": "features",
    "graph_ptr": "graph_ptr",
    **_ANSWERS,
    **{f"graph_{name}": f"graph_{array}" for name, array in _ANSWERS.items()},
}
"Arrays of vertices and of graphs, with their names in a dataset."
_COUNTED = {"num_classes": "class_names", "num_edge_types": "edge_type_names", "num_graph_classes": ""}
"Counts of a description, and the names of what they count."
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
    header_bytes: int
    "Number of bytes in the header."
    fortran: bool
    "Whether the last axis is the slowest one in the file."


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
        """An array as rows."""
        member = self.members[name]
        row_shape = member.shape[1:]
        row_size = math.prod(row_shape)

        def chunks() -> Iterator[RowChunk]:
            first, parts = 0, iter([self.read(name)])
            if row_size and not member.fortran:
                flat = self.numbers(name, chunk_rows(row_shape) * row_size, stop=math.prod(member.shape))
                parts = (part.reshape(-1, *row_shape) for part in flat)
            for rows in parts:
                yield RowChunk(rows=rows, first_row=first)
                first += len(rows)

        return Rows(file=f"{self.path}, {name}", dtype=member.dtype, shape=member.shape, chunks=chunks)

    def numbers(self, name: str, step: int, *, first: int = 0, stop: int) -> Iterator[Array]:
        """Read the numbers ``first`` to ``stop - 1`` of an array, as they lie in the file, ``step`` at a time.

        Several arrays of one archive may be read at the same time.
        """
        member = self.members[name]
        with self._opened(name) as stream:
            # In a compressed member seeking reads and drops.
            stream.seek(member.header_bytes + first * member.dtype.itemsize)
            for start in range(first, stop, step):
                numbers = np.empty(min(step, stop - start), member.dtype)
                left = numbers.view(np.uint8).data
                while left:
                    if not (count := stream.readinto(left)):
                        raise EOFError("it ends early")
                    left = left[count:]
                yield numbers
            if stop == math.prod(member.shape):
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
        is_fortran = fortran and len(shape) > 1
        return NpzMember(file=file, dtype=dtype, shape=shape, header_bytes=offset, fortran=is_fortran)


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
        known = {"edge_index", *_EDGE_DATA, *_SPARSE, *_ARRAYS}
        others = [(name, member) for name, member in sorted(archive.members.items()) if name not in known]
        return [f"{printable(name):.80} ({member.dtype!s:.40} {list(member.shape)})" for name, member in others]


def _source(archive: NpzArchive) -> ImportSource:
    described = _described(archive.path)
    stated, members = described.pop("stated"), archive.members
    data = {
        name.removeprefix("edge_"): replace(archive.rows(name), store_as=dtype)
        for name, dtype in _EDGE_DATA.items()
        if name in members
    }
    sparse, num_features = ({}, 0) if "features" in members else _sparse_features(archive)
    return ImportSource(
        description=f"archive {archive.path.name}",
        edges=npz_edges(archive, data, stated.get("num_edge_types")),
        arrays={**sparse, **{array: archive.rows(name) for name, array in _ARRAYS.items() if name in members}},
        stated={**stated, "num_features": num_features},
        **described,
    )


def _described(path: Path) -> dict[str, Any]:
    """Fields of an ImportSource from the description beside an archive; without a description, the name and nothing stated."""
    file = path.with_suffix(".json")
    if not file.exists():
        return {"name": path.stem, "stated": {}}
    try:
        body = as_mapping(json.loads(file.read_bytes()))
        counts = {key: as_integer(body[key], key) for key in body if key in _COUNTED}
        names = {key: as_texts(body.get(key, [])) for key in ("graph_names", *_COUNTED.values()) if key}
        for key, named in _COUNTED.items():
            known = names.get(named)
            # The number of names, unless a count is stated beside them.
            if known and counts.setdefault(key, len(known)) != len(known):
                raise ValueError(f"{key} is {counts[key]}, but there are {len(known)} names")
        is_once = "both" not in as_text(body.get("edges_stored", "both directions"))
        return {
            "name": as_text(body.get("name", path.stem)),
            "undirected_once": not as_flag(body.get("directed", True)) and is_once,
            "num_vertices": as_integer(body["num_nodes"], "num_vertices") if "num_nodes" in body else None,
            "stated": {**counts, **names},
        }
    except (OSError, ValueError, TypeError) as error:
        raise DatasetError(
            f"description of an archive cannot be used: {error} (in {file})",
            hint="Correct the file, or remove it to take the archive as it is.",
        ) from error


def npz_edges(archive: NpzArchive, data: dict[str, Rows], num_types: int | None = None) -> Edges:
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
    where = f"{archive.path}, edge_index"
    if member.dtype.kind not in "iu":
        raise wrong_form(member, "integers [2, E]", where=where, hint=_HINT, error=DatasetError)
    return with_data(_ends(archive, where), member.shape[1], data, num_types)


def _ends(archive: NpzArchive, where: str) -> Iterator[EdgeChunk]:
    """The edges: both rows are read at the same time. In Fortran order the two ends of an edge are adjacent."""
    first, name, num_edges = 0, "edge_index", archive.members["edge_index"].shape[1]
    pairs: Iterator[Any]
    if archive.members[name].fortran:
        ends = archive.numbers(name, 2 * CHUNK_EDGES, stop=2 * num_edges)
        pairs = (part.reshape(-1, 2).T.copy() for part in ends)
    else:
        halves = ((0, num_edges), (num_edges, 2 * num_edges))
        pairs = zip(*(archive.numbers(name, CHUNK_EDGES, first=at, stop=stop) for at, stop in halves), strict=True)
    for pair in pairs:
        # Numba compiles once for each dtype and byte order; unsigned ids beyond 63 bits turn negative, and are refused.
        src, dst = (ids if ids.dtype == np.int32 else ids.astype(np.int64, copy=False) for ids in pair)
        yield EdgeChunk(src=src, dst=dst, file=where, first_row=first)
        first += len(src)


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
    offsets, columns, values, shape = (archive.rows(name) for name in _SPARSE)
    is_shape = shape.shape == (2,) and shape.dtype.kind in "iu"
    num_rows, num_columns = archive.read("features_shape").tolist() if is_shape else (-1, -1)
    num_stored = math.prod(offsets.shape) - 1
    if num_rows != num_stored or num_columns not in RANGES["num_features"]:
        raise DatasetError(
            f"offsets and shape of sparse features differ: features_shape is {[num_rows, num_columns]}, but there are "
            f"offsets for {num_stored} rows; the number of columns is {RANGES['num_features']} (in {archive.path}, features)",
            hint=_HINT,
        )
    return sparse_arrays(offsets, columns, values, num_columns=num_columns), num_columns
