"""Graphs on disk: save a graph, open it by memory map, check it, or read its description alone.

A dataset is a folder with a manifest and one raw file for each array; docs/data.md describes it byte by byte.
Opening reads the manifest and the headers of the arrays, so a graph of any size opens at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sagann.errors import DatasetError, InputError
from sagann.graph import SPLIT_NAMES, Graph, Topology, validate_graph
from sagann.graph.feature_store import tensor_of
from sagann.graph.graph import names_of
from sagann.graph.rows import csr_tensor, is_sparse
from sagann.graph.subgraph import require_no_links
from sagann.storage.folder import new_folder, recover
from sagann.storage.manifest import (
    SAFE_NAME,
    Manifest,
    answers_fields,
    kind_of_labels,
    layout_of,
    read_manifest,
    write_manifest,
)
from sagann.storage.npy import DTYPE_NAMES, ArraySpec, dtype_name, map_npy, write_npy
from sagann.storage.verify import check_files

_STATED = ("name", "num_classes", "num_graph_classes", "num_edge_types")
_FOUND = ("name", "num_vertices", "num_edges", "num_features", "num_edge_types", "num_graphs")
"Fields and properties of a graph that the manifest has under the same name."
_OF = ("", "graph_")
"What the names of the answers of vertices, and of graphs, begin with."


def save_graph(graph: Graph, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a graph as a dataset folder, atomically: a kill at any instant leaves no half dataset.

    Args:
        graph: any graph. Memory-mapped tensors are written without a copy in memory; the rows of a feature store are
            read into memory first.
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
    return map_dataset(folder, read_manifest(folder), verify=verify)


def map_dataset(folder: Path, manifest: Manifest, *, verify: bool = True) -> Graph:
    """Map the arrays of a dataset folder whose manifest is known."""
    tensors = {name: map_npy(folder / f"{name}.npy", spec, verify=verify) for name, spec in manifest.arrays.items()}
    return graph_of_arrays(
        tensors, manifest.num_features, names_of(manifest), {name: getattr(manifest, name) for name in _STATED}
    )


def graph_of_arrays(
    tensors: Mapping[str, Tensor], num_features: int, names: Mapping[str, Any], stated: Mapping[str, Any]
) -> Graph:
    """A graph of arrays with the names of their files, without checks; ``stated`` has its name and counts that no array tells."""
    topology = Topology(
        indptr=tensors["indptr"],
        indices=tensors["indices"],
        num_src=len(tensors["indptr"]) - 1,
        edge_data={name.removeprefix("edge_"): rows for name, rows in tensors.items() if name.startswith("edge_")},
        validate=False,
    )
    return with_vertex_arrays(Graph(topology=topology, **stated), tensors, num_features, names)


def with_vertex_arrays(
    graph: Graph, tensors: Mapping[str, Tensor], num_features: int, names: Mapping[str, Any]
) -> Graph:
    """Add features, labels, targets, splits, offsets and answers of graphs, original ids and names, without checks; ``tensors`` has the
    names of the files.
    """
    features = tensors.get("features")
    if "features_indptr" in tensors:
        parts = (tensors[f"features_{part}"] for part in ("indptr", "indices", "values"))
        features = csr_tensor(*parts, num_columns=num_features)
    answers: dict[str, Any] = {}
    for of in _OF:
        answers |= {of + name: tensors.get(of + name) for name in ("labels", "targets")}
        masks = {name: tensors.get(f"{of}split_{name}") for name in SPLIT_NAMES}
        answers[f"{of}splits"] = {name: mask for name, mask in masks.items() if mask is not None}
    return replace(
        graph,
        features=features,
        **names,
        graph_ptr=tensors.get("graph_ptr"),
        original_ids=tensors.get("original_ids"),
        **answers,
    )


def check_dataset(path: str | os.PathLike[str]) -> None:
    """Read a whole dataset: compare all checksums, then check every value (:func:`sagann.graph.validate_graph`).

    Raises:
        DatasetError: a file is missing, truncated or damaged.
        InputError: a value is not valid in a graph.
    """
    graph = open_graph(path)
    check_files(graph)
    validate_graph(graph)


def dataset_info(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the manifest alone: names, counts, dtypes, shapes and bytes, as plain values.

    Returns:
        the fields of the manifest; ``arrays`` maps each name to dtype, shape and file_bytes.
    Raises:
        DatasetError: the folder is missing, not a dataset, or its manifest is damaged.
    """
    manifest = read_manifest(_folder(path))
    info = asdict(manifest)
    for name, spec in manifest.arrays.items():
        info["arrays"][name] = {"dtype": spec.dtype, "shape": spec.shape, "file_bytes": spec.file_bytes}
    return info


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
    topology = graph.topology
    features = None if graph.features is None else tensor_of(graph.features)
    tensors: dict[str, Tensor | None] = {"indptr": topology.indptr, "indices": topology.indices}
    require_no_links(graph, "a graph is saved")
    for name, rows in topology.edge_data.items():
        if not SAFE_NAME.fullmatch(name):
            raise InputError(
                f"name of edge data cannot be stored: '{name}', expected up to 64 letters, digits and "
                f"underscores (in graph '{graph.name}')",
                hint="Rename the edge data.",
            )
        tensors[f"edge_{name}"] = rows
    if is_sparse(features):
        tensors["features_indptr"] = features.crow_indices()
        tensors["features_indices"] = features.col_indices()
        tensors["features_values"] = features.values()
    else:
        tensors["features"] = features
    tensors |= graph.vertices.arrays()
    tensors["graph_ptr"] = graph.graph_ptr
    tensors |= graph.graphs.arrays()
    tensors["original_ids"] = graph.original_ids
    present = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    for name, tensor in present.items():
        if tensor.layout != torch.strided or dtype_name(tensor.dtype) not in DTYPE_NAMES:
            raise InputError(
                f"array cannot be stored: {tensor.dtype}, {tensor.layout}, expected a dense array of "
                f"{', '.join(sorted(DTYPE_NAMES))} (in {name} of graph '{graph.name}')",
                hint="Convert the array; sparse features must be torch.sparse_csr.",
            )
    return present


def manifest_of(graph: Graph, arrays: Mapping[str, ArraySpec]) -> Manifest:
    """The manifest of a graph; ``arrays`` describes the array files that were written."""
    of_vertices, of_graphs = (
        answers_fields(of.prefix, kind_of_labels(of.labels), of.num_classes, of.num_targets, of.splits)
        for of in (graph.vertices, graph.graphs)
    )
    return Manifest(
        **{name: getattr(graph, name) for name in _FOUND},
        **names_of(graph),
        features=layout_of(graph.features),
        edge_data=tuple(graph.topology.edge_data),
        **of_vertices,
        **of_graphs,
        source="save_graph",
        arrays=arrays,
    )
