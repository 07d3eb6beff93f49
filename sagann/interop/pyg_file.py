"""Graphs that PyG has saved: a ``Data`` object in a file of ``torch.save``, read without PyG and without running its code.

Three forms are known: the object itself, or its ``to_dict()``; ``(data, slices)`` and ``(dict, slices, class)``, as datasets of PyG
keep in ``processed/data.pt``, of one graph or of many. The slices of many say where the graphs begin in each array, in which they stand one after
the other; ids of vertices count from 0 in each graph there.

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
import torch
from torch import Tensor

from sagann.errors import DatasetError, shown
from sagann.graph import Graph
from sagann.graph.checks import first_true, form_of
from sagann.import_config import ImportOptions
from sagann.interop.pyg import Attributes, Task
from sagann.interop.torch_file import Saved, read_torch_file
from sagann.ranges import RANGES
from sagann.storage.import_source import EdgeChunk, ImportSource, edges_of_array, with_data
from sagann.storage.importer import graph_of, import_dataset
from sagann.storage.rows import Array, Rows, array_rows

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
_HINT = "Save the graph with torch.save(data.to_dict(), FILE), a dataset with InMemoryDataset.save(list(dataset), FILE)."
_OF_VERTICES = ("x", "z", "pos")
"Attributes with a row per vertex by PyG's convention, in the order in which they tell the number of vertices."
_COUNTS = ("_num_nodes", "num_nodes", "__num_nodes__")
"Names that PyG has had for the number of vertices, a list for several graphs."


def read_pyg(path: str | os.PathLike[str], *, split: int | None = None, task: Task = "auto") -> Graph:
    """Read a graph, or many, that PyG has saved, and check every value. PyG need not be installed, and nothing in the file is run.

    The graph takes what :func:`sagann.interop.from_pyg` does, and a warning names what is left out. Many graphs become one, with ``graph_ptr``;
    a ``y`` with a row per graph becomes ``graph_labels`` or ``graph_targets``.

    Args:
        path: file that ``torch.save`` has written: a ``Data``, its ``to_dict()``, or the file of a dataset.
        split: column of masks that hold several splits.
        task: what ``y`` is, as of :func:`sagann.interop.from_pyg`.
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
    source, left_out = _source(Path(path), split, task)
    if left_out:
        warnings.warn(left_out, stacklevel=2)
    return graph_of(source)


def import_pyg(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    split: int | None = None,
    task: Task = "auto",
    options: ImportOptions | None = None,
    say: Callable[[str], None] = warnings.warn,
) -> None:
    """Import a graph, or many, that PyG has saved into a dataset folder: edges, edge data and features in bounded memory.

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
    found, left_out = _source(Path(source), split, task)
    if left_out:
        say(left_out)
    import_dataset(found, out, options or ImportOptions())


def _source(path: Path, split: int | None, task: Task) -> tuple[ImportSource, str]:
    """What a file has of a graph, or of many, and the line that names what is left out."""
    attributes, edge_ptr = _attributes(path, split, task)
    ids, x = attributes.edge_index(), attributes.tensor("x")
    num_edges, y = ids.shape[1], None if task == "none" else attributes.tensor("y")
    if attributes.num_vertices is None and y is not None and y.ndim:
        # The rows of y count the vertices, if they are enough.
        largest = int(ids.max()) if ids.numel() else -1
        if len(y) <= largest:
            raise attributes.without_answers(y, f"{largest + 1} vertices")

    def rows(name: str, tensor: Tensor) -> Rows:
        return array_rows(_array(tensor), attributes.where(name))

    data = {name: rows(f"edge_{name}", tensor) for name, tensor in attributes.edge_data(num_edges).items()}
    arrays = {} if x is None else {"features": rows("x", x)}
    arrays |= {key: rows("y", tensor) for key, tensor in attributes.answers().items()}
    arrays |= {f"split_{name}": rows(f"{name}_mask", mask) for name, mask in attributes.splits().items()}
    if attributes.graph_ptr is not None:
        arrays["graph_ptr"] = rows("slices", attributes.graph_ptr)
    source = ImportSource(
        name=path.stem,
        description=f"PyG file {path.name}",
        edges=with_data(_ends(attributes, edge_ptr), num_edges, data),
        arrays=arrays,
        num_vertices=attributes.num_vertices,
    )
    return source, attributes.left_out()


def _array(tensor: Tensor) -> Array:
    """A tensor as an array; numbers that NumPy does not have become float32."""
    try:
        return tensor.detach().resolve_neg().resolve_conj().numpy()
    except TypeError:
        return tensor.detach().float().numpy()


def _attributes(path: Path, split: int | None, task: Task) -> tuple[Attributes, Tensor | None]:
    """What a file has of a graph, tensors mapped from the file; or of many, in the form of a batch but for ids that count from 0 in each
    graph, with the offsets of the graphs among the edges."""
    saved = value = read_torch_file(path, _ALLOWED, advice=_ADVICE)
    slices: Mapping[Any, Any] = {}
    match value:
        case (saved, None | dict() as given) | (saved, None | dict() as given, _):
            slices = given or {}
    if isinstance(saved, Saved):
        # Since PyG 2 the attributes lie in a store of the object.
        saved = saved.state
        store = saved.get("_store") if isinstance(saved, dict) else None
        if isinstance(store, Saved) and isinstance(store.state, dict):
            saved = store.state.get("_mapping")
    if not isinstance(saved, dict) or not all(isinstance(name, str) for name in saved):
        kind = f"{form_of(value)}, expected a Data object or its to_dict()"
        raise DatasetError(f"the file has no graph: {kind} (in {path})", hint=_HINT)
    values = {name: each for name, each in saved.items() if each is not None}
    found = Attributes(values=values, task=task, split=split, path=str(path))
    found.taken |= {*_COUNTS} & {*values}
    # Attributes have texts as names.
    bounds = {name: each.long() for name, each in slices.items() if type(name) is str and isinstance(each, Tensor)}
    if all(each.shape == (2,) for each in bounds.values()):
        counts, x = _counts(found, 1), found.tensor("x")
        found.num_vertices = counts[0] if counts else None if x is None or x.ndim == 0 else len(x)
        return found, None
    return found, _join_graphs(found, bounds)


def _join_graphs(found: Attributes, bounds: Mapping[str, Tensor]) -> Tensor:
    """Bring the attributes of many graphs into the form of a batch; gives the offsets of the graphs among the edges.

    ``bounds`` are the offsets of the graphs along the rows of each attribute (of edge_index, along its columns).
    """
    values = dict(found.values)
    sizes = {tuple(each.shape) for each in bounds.values()}
    if len(sizes) > 1 or any(len(size) != 1 or size[0] < 2 for size in sizes):
        raise found.refused(
            "the slices do not count the same graphs", "slices", f"shapes {sorted(sizes)[:3]}", _HINT
        )
    bounds = {name: each for name, each in bounds.items() if isinstance(values.get(name), Tensor)}
    for name, each in bounds.items():
        rows = values[name]
        num_rows = 0 if rows.ndim == 0 else rows.shape[-1 if name == "edge_index" else 0]
        # Neighbours are compared, not subtracted: the difference of large offsets overflows.
        if each[0] != 0 or each[-1] != num_rows or (each[1:] < each[:-1]).any():
            value = f"from {int(each[0])} to {int(each[-1])}, expected ascending offsets of {num_rows} rows"
            raise found.refused(f"the slices of {shown(name)} are not those of its rows", "slices", value, _HINT)
    num_vertices, edge_ptr = _counts(found, next(iter(sizes))[0] - 1), bounds.get("edge_index")
    graph_ptr = next((bounds[name] for name in _OF_VERTICES if name in bounds), None)
    if num_vertices is not None:
        graph_ptr = torch.tensor([0, *num_vertices]).cumsum(0)
    if graph_ptr is None or edge_ptr is None:
        missing = "edge_index has no slices" if edge_ptr is None else "neither x, z, pos nor num_nodes tells"
        raise found.refused("it is not clear which vertices a graph has", "slices", missing, _HINT)
    apart = {
        name
        for name, each in bounds.items()
        if not torch.equal(each, edge_ptr if name == "weight" or name.startswith("edge_") else graph_ptr)
    }
    if "x" in apart:
        value = "x has other slices than the vertices"
        raise found.refused("features and vertices differ in number", "x", value, _HINT)
    if "y" in apart and found.task != "none":
        y, counts, num_graphs = values["y"], bounds["y"].diff(), len(graph_ptr) - 1
        if counts[0] == 0 or (counts != counts[0]).any():
            counted = f"each of which has {int(counts.min())} to {int(counts.max())} rows of y"
            raise found.without_answers(y, f"{num_graphs} graphs, {counted}")
        # A graph whose y is a vector of T numbers has T rows.
        values["y"] = y if counts[0] == 1 else y.reshape(num_graphs, int(counts[0]), *y.shape[1:])
    found.others = {name: values.pop(name) for name in apart - {"y"}}
    found.values, found.graph_ptr, found.num_vertices = values, graph_ptr, int(graph_ptr[-1])
    return edge_ptr


def _counts(found: Attributes, num_graphs: int) -> list[int] | None:
    """Number of vertices of each graph, as the file states it; None if it does not."""
    for name in _COUNTS:
        value = found.values.get(name)
        counts: list[Any] = value if isinstance(value, list) else [value]
        # A sum stands beside the list of the numbers.
        if value is None or (num_graphs > 1 and len(counts) != num_graphs):
            continue
        is_count = all(type(each) is int and each >= 0 for each in counts)
        if len(counts) != num_graphs or not is_count or sum(counts) not in RANGES["num_vertices"]:
            text = f"{shown(value) if type(value) is int else form_of(value)}, expected {RANGES['num_vertices']}"
            raise found.refused("the number of vertices is no count", name, text, _HINT)
        return counts
    return None


def _ends(attributes: Attributes, edge_ptr: Tensor | None) -> Iterator[EdgeChunk]:
    """The edges; of several graphs, with ids that count on from graph to graph. An id that is no vertex of its graph is refused."""
    where = attributes.where("edge_index")
    chunks = edges_of_array(attributes.edge_index().numpy(), where)
    if edge_ptr is None or attributes.graph_ptr is None:
        yield from chunks
        return
    graph_ptr, sizes_of = attributes.graph_ptr.numpy(), attributes.graph_ptr.diff().numpy()
    for chunk in chunks:
        edges = np.arange(chunk.first_row, chunk.first_row + len(chunk.src))
        graphs = np.searchsorted(edge_ptr.numpy(), edges, side="right") - 1
        starts, sizes = graph_ptr[graphs], sizes_of[graphs]
        at = first_true((chunk.src < 0) | (chunk.src >= sizes) | (chunk.dst < 0) | (chunk.dst >= sizes))
        if at is not None:
            raise DatasetError(
                f"an edge leaves its graph: {chunk.src[at]} -> {chunk.dst[at]} in graph {graphs[at]}, which "
                f"has {sizes[at]} vertices (in {where}, column {chunk.first_row + at})",
                hint="Number the vertices of each graph from 0, and save the dataset again.",
            )
        yield EdgeChunk(src=chunk.src + starts, dst=chunk.dst + starts, file=where, first_row=chunk.first_row)
