"""Node-property datasets of the Open Graph Benchmark, from the folders that OGB downloads.

Both raw layouts are read: the CSV files (``raw/edge.csv.gz`` and so on), and the archives of the largest datasets
(``raw/data.npz``). The split is read from ``split/``. Pickles of torch or pandas are never opened; the folders
``processed`` and ``mapping`` are not read.

References:
    Hu et al., Open Graph Benchmark: Datasets for Machine Learning on Graphs, NeurIPS 2020.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sagann.errors import DatasetError
from sagann.graph import Graph
from sagann.import_config import ImportOptions
from sagann.storage.edge_list import table_array, table_edges, table_rows
from sagann.storage.import_source import EdgeChunk, ImportSource, with_data
from sagann.storage.importer import graph_of, import_dataset
from sagann.storage.json_fields import as_integer
from sagann.storage.npz_graph import NpzArchive, npz_edges
from sagann.storage.regular_file import reading
from sagann.storage.rows import Array, Rows, masks_of
from sagann.storage.tables import CsvTable

_SPLIT_FILES = {"train": "train", "val": "valid", "test": "test"}


def import_ogb(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    split: str | None = None,
    options: ImportOptions | None = None,
) -> None:
    """Import a node-property dataset of OGB, streaming in bounded memory.

    OGB's loader adds inverse edges to some datasets (``add_inverse_edge``). Here the user decides:
    ``ImportOptions(symmetrise=True)`` adds them.

    Args:
        source: the dataset's folder, which holds ``raw`` and ``split`` (``dataset/ogbn_arxiv``).
        out: dataset folder to make.
        split: name of the split scheme, a folder in ``split``; default the only one.
        options: symmetrise, memory, and so on.
    Raises:
        DatasetError: a file is missing, damaged, or of another kind of dataset; the message names file and row.
    """
    options = options or ImportOptions()
    with _opened(Path(source), split) as found:
        import_dataset(found, out, options)


def read_ogb(source: str | os.PathLike[str], *, split: str | None = None) -> Graph:
    """Read a node-property dataset of OGB into memory, and check every value.

    The CSV files of a large dataset take minutes each time: :func:`import_ogb` makes a folder that is opened at once, and mapped.

    Args:
        source: the dataset's folder, as of :func:`import_ogb`.
        split: name of the split scheme.
    Raises:
        DatasetError: as :func:`import_ogb`.
        InputError: a value is not valid in a graph.
    """
    with _opened(Path(source), split) as found:
        return graph_of(found)


@contextmanager
def _opened(folder: Path, split: str | None) -> Iterator[ImportSource]:
    """What is imported of a dataset's folder; archives are open inside the block."""
    raw = folder / "raw"
    _refuse_other_kinds(folder)
    with ExitStack() as stack:
        fields = _archive_fields(raw, stack) if (raw / "data.npz").is_file() else _csv_fields(raw)
        fields["arrays"] |= _masks(folder / "split", split, fields["num_vertices"])
        yield ImportSource(name=folder.name, description=f"OGB folder {folder.name}", **fields)


def _csv_fields(raw: Path) -> dict[str, Any]:
    """Fields of the ImportSource, without name and splits, from the layout with CSV files."""

    def arrays(**files: str) -> dict[str, Rows]:
        found = {name: _find(raw, f"{file}.csv") for name, file in files.items()}
        tables = {name: CsvTable(path, header=False) for name, path in found.items() if path is not None}
        return {name: table_array(table, "features" if name == "feat" else name) for name, table in tables.items()}

    edges = CsvTable(_require(raw, "edge.csv"), header=False)
    num_edges = _stated(raw, "num-edge-list.csv", "num_edges")
    return {
        "edges": with_data(_ends(edges, num_edges), num_edges, arrays(feat="edge-feat")),
        "arrays": arrays(features="node-feat", labels="node-label"),
        "num_vertices": _stated(raw, "num-node-list.csv", "num_vertices"),
    }


def _archive_fields(raw: Path, stack: ExitStack) -> dict[str, Any]:
    """Fields of the ImportSource, without name and splits, from the layout with archives."""
    data = stack.enter_context(NpzArchive(raw / "data.npz"))
    if "num_nodes_list" not in data.members:
        value = f"no array 'num_nodes_list'; it holds {', '.join(sorted(data.members))}"
        raise _not_ogb("archive is not one of OGB", value, data.path)
    arrays = {"features": data.rows("node_feat")} if "node_feat" in data.members else {}
    if (raw / "node-label.npz").is_file():
        archive = stack.enter_context(NpzArchive(raw / "node-label.npz"))
        for name in ["node_label"] if "node_label" in archive.members else [*archive.members][:1]:
            arrays["labels"] = archive.rows(name)
    edge_data = {}
    if "edge_feat" in data.members and data.members["edge_feat"].dtype.kind == "f":
        edge_data["feat"] = replace(data.rows("edge_feat"), store_as="float32")
    return {
        "edges": npz_edges(data, edge_data),
        "arrays": arrays,
        "num_vertices": _only(data.read("num_nodes_list"), "num_vertices", data.path),
    }


def _ends(table: CsvTable, num_edges: int) -> Iterator[EdgeChunk]:
    if len(table.names) != 2:
        value = f"{len(table.names)} columns, expected source and destination"
        raise _not_ogb("edge file has the wrong form", value, table.path)
    found = 0
    for chunk in table_edges(table, table.names):
        yield chunk
        found += len(chunk.src)
    if found != num_edges:
        value = f"{found} rows, num-edge-list says {num_edges}"
        raise _not_ogb("number of edges differs from the stated number", value, table.path)


def _masks(folder: Path, scheme: str | None, num_vertices: int) -> dict[str, Rows]:
    if scheme is None and not folder.is_dir():
        return {}
    schemes = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    if scheme is None and len(schemes) == 1:
        scheme = schemes[0]
    if scheme not in schemes:
        what, value = "no such split scheme", f"{scheme!r}; there are {', '.join(schemes)}"
        hint = "Name one of them: split=... (--split-scheme)."
        if not schemes:
            value = "no folder of a scheme stands in it"
            hint = "Put the split there as SCHEME/train.csv and so on; or remove the folder, and name no scheme."
        elif scheme is None:
            what = "split scheme is not clear"
        raise DatasetError(f"{what}: {value} (in {folder})", hint=hint)
    tables = {
        name: CsvTable(_require(folder / scheme, f"{file}.csv"), header=False)
        for name, file in _SPLIT_FILES.items()
    }
    return masks_of({name: [table_rows(table, "int64")] for name, table in tables.items()}, num_vertices)


def _refuse_other_kinds(folder: Path) -> None:
    raw = folder / "raw"
    if not raw.is_dir():
        raise _not_ogb("not a dataset folder of OGB", "no folder 'raw' in it", folder)
    if _find(raw, "triplet-type-list.csv") or (raw / "relations").is_dir():
        raise _not_ogb("kind of graph not supported", "a heterogeneous graph, with vertices of several kinds", raw)


def _stated(raw: Path, name: str, what: str) -> int:
    path = _require(raw, name)
    with reading(path):
        numbers = np.loadtxt(path, np.int64, ndmin=1, max_rows=2)
    return _only(numbers, what, path)


def _only(numbers: Array, what: str, path: Path) -> int:
    """The number that is stated of the only graph, in the range of ``what``."""
    if numbers.size != 1:
        value = f"{numbers.size or 'no'} graphs, a node-property dataset has one"
        raise _not_ogb("kind of dataset not supported", value, path)
    try:
        return as_integer(numbers.reshape(-1)[0].item(), what)
    except TypeError as error:
        raise _not_ogb("a stated number is out of range", str(error), path) from error


def _find(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / f"{name}.gz", folder / name) if path.is_file()), None)


def _require(folder: Path, name: str) -> Path:
    path = _find(folder, name)
    if path is None:
        raise _not_ogb("file not found", f"neither {name}.gz nor {name}", folder)
    return path


def _not_ogb(what: str, value: str, where: Path) -> DatasetError:
    hint = "Give a node-property dataset of OGB (ogbn-..., with vertices of one kind) as it was downloaded."
    return DatasetError(f"{what}: {value} (in {where})", hint=hint)
