"""Graphs on disk: save a graph, open it by memory map, or check it.

A dataset is a folder with a manifest and one raw file for each array; docs/data.md describes it byte by byte.
Opening reads the manifest and the headers of the arrays, so a graph of any size opens at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sagann.errors import DatasetError, InputError, require_type
from sagann.graph import SPLIT_NAMES, Graph, Topology
from sagann.graph.feature_store import tensor_of
from sagann.graph.graph import named_arrays
from sagann.graph.renumber import require_no_links
from sagann.graph.rows import csr_tensor
from sagann.storage.folder import new_folder, recover
from sagann.storage.manifest import SAFE_NAME, STATED, Manifest, read_manifest, write_manifest
from sagann.storage.npy import DTYPE_NAMES, ArraySpec, dtype_name, map_npy, write_npy
from sagann.storage.verify import check_files, check_graph

_FIELDS = ("labels", "targets", "graph_ptr", "graph_labels", "graph_targets", "original_ids")
"Arrays that are fields of a graph under the same name."


def save_graph(graph: Graph, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a graph as a dataset folder, atomically: a kill at any instant leaves no half dataset.

    Args:
        graph: any graph; its values are not checked (:func:`sagann.graph.validate_graph`). Memory-mapped tensors are written
            without a copy in memory; the rows of a feature store are read into memory first.
        path: folder to make; its parent must exist.
        overwrite: replace an existing dataset. The old one stays until the new one is whole.
    Raises:
        DatasetError: ``path`` exists and must not be replaced, or a file cannot be written.
        InputError: the format cannot store a dtype or a name of edge data, or arrays do not fit each other.
    Example:
        >>> import tempfile
        >>> topology = Topology.from_coo(src=torch.tensor([0, 1]), dst=torch.tensor([1, 2]), num_src=3)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_graph(Graph(topology=topology, name="path"), folder + "/path")
        ...     open_graph(folder + "/path")
        Graph(num_vertices=3, num_edges=2, num_features=0, num_classes=0)
    """
    require_type(graph, Graph, where="save_graph", hint="Pass a graph, as Graph(topology=topology).")
    tensors = tensors_of(graph)
    # Refused before the folder gets its name.
    with new_folder(path, overwrite=overwrite) as folder:
        # Damage would get a checksum that is right.
        check_files(graph)
        arrays = {name: write_npy(folder / f"{name}.npy", tensor) for name, tensor in tensors.items()}
        write_manifest(folder, manifest_of(graph, arrays))


def open_graph(path: str | os.PathLike[str], *, verify: bool = True) -> Graph:
    """Open a dataset folder by memory map, without reading its arrays.

    Headers and sizes of all files are compared with the manifest; :func:`check_dataset` checks the values. The tensors are
    copy-on-write: the files never change.

    Args:
        path: the folder.
        verify: compare the checksums of the files when a Trainer or a Predictor checks the values.
    Raises:
        DatasetError: the folder is missing, not a dataset, damaged or truncated; the message names the file.
    """
    folder = _folder(path)
    manifest = read_manifest(folder)
    tensors = map_arrays(folder, manifest.arrays, verify=verify)
    return graph_of_arrays(tensors, manifest.stated)


def map_arrays(folder: Path, arrays: Mapping[str, ArraySpec], *, verify: bool = True) -> dict[str, Tensor]:
    """Map the array files of a dataset folder; ``arrays`` describes them by name."""
    return {name: map_npy(folder / f"{name}.npy", spec, verify=verify) for name, spec in arrays.items()}


def graph_of_arrays(
    tensors: Mapping[str, Tensor], stated: Mapping[str, Any], topology: Topology | None = None
) -> Graph:
    """A graph of arrays with the names of their files, and of values for STATED, without checks; ``topology`` takes the place of its arrays."""
    if topology is None:
        topology = Topology(
            indptr=tensors["indptr"],
            indices=tensors["indices"],
            num_src=len(tensors["indptr"]) - 1,
            edge_data={
                name.removeprefix("edge_"): rows for name, rows in tensors.items() if name.startswith("edge_")
            },
            validate=False,
        )
    given: dict[str, Any] = dict(stated)
    num_features, given["features"] = given.pop("num_features"), tensors.get("features")
    if "features_indptr" in tensors:
        parts = (tensors[f"features_{part}"] for part in ("indptr", "indices", "values"))
        given["features"] = csr_tensor(*parts, num_columns=num_features)
    given |= {name: tensors.get(name) for name in _FIELDS}
    for of in ("", "graph_"):
        given[f"{of}splits"] = {
            name: tensors[f"{of}split_{name}"] for name in SPLIT_NAMES if f"{of}split_{name}" in tensors
        }
    return Graph(topology=topology, **given)


def check_dataset(path: str | os.PathLike[str]) -> None:
    """Read a whole dataset: compare all checksums, then check every value (:func:`sagann.graph.validate_graph`).

    Raises:
        DatasetError: a file is missing, truncated or damaged.
        InputError: a value is not valid in a graph.
    """
    check_graph(open_graph(path))


def _folder(path: str | os.PathLike[str]) -> Path:
    folder = Path(path)
    recover(Path(os.path.realpath(folder)))
    if not folder.is_dir():
        raise DatasetError(
            f"dataset not found: there is no such folder (in {folder})",
            hint="Check the path, or make a dataset with 'sagann data import' or save_graph.",
        )
    return folder


def tensors_of(graph: Graph) -> dict[str, Tensor]:
    """A graph's arrays by the names of their files; refuse dtypes and names that the format cannot store."""
    require_no_links(graph, "a graph is saved")
    for name in graph.topology.edge_data:
        if not SAFE_NAME.fullmatch(name):
            raise InputError(
                f"name of edge data cannot be stored: '{name}', expected up to 64 letters, digits and "
                f"underscores (in graph '{graph.name}')",
                hint="Rename the edge data.",
            )
    tensors = {name: tensor_of(array) for name, array in named_arrays(graph)}
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or dtype_name(tensor.dtype) not in DTYPE_NAMES:
            raise InputError(
                f"array cannot be stored: {tensor.dtype}, {tensor.layout}, expected a dense array of "
                f"{', '.join(sorted(DTYPE_NAMES))} (in {name} of graph '{graph.name}')",
                hint="Convert the array; sparse features must be torch.sparse_csr.",
            )
    return tensors


def manifest_of(graph: Graph, arrays: Mapping[str, ArraySpec]) -> Manifest:
    """The manifest of a graph; ``arrays`` describes the array files that were written."""
    return Manifest(stated={name: getattr(graph, name) for name in STATED}, source="save_graph", arrays=arrays)
