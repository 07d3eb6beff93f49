"""Datasets by name, in the folders where PyG, OGB and sagann keep them. Cora and CiteSeer are fetched where they are missing.

A dataset is a folder, whose name is that of the dataset in upper or lower case, with ``-`` for ``_``; or an ``.npz`` file. It lies in
a root folder, or one folder deeper, as ``data/Planetoid/Cora``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

from sagann.errors import DatasetError, InputError, did_you_mean, listed, require_type, shown
from sagann.graph import Graph
from sagann.interop.ogb import read_ogb
from sagann.interop.planetoid import FOLDERS, PUBLISHED, fetch_planetoid, read_planetoid
from sagann.interop.pyg import Task
from sagann.interop.pyg_file import read_pyg
from sagann.storage.dataset import open_graph
from sagann.storage.folder import is_dataset
from sagann.storage.load import EMBEDDED, embedded_graph
from sagann.storage.npz_graph import read_npz

ROOTS = ("data", "dataset", "datasets")
"Folders that are looked into by default: those of the examples of PyG and of OGB, and that of our own pages."
_MOST_ENTRIES = 1000
_MOST_NAMES = 10
_TRANSFORMS = ("pre_transform.pt", "pre_filter.pt")
"Files of PyG beside a processed graph."
_FETCHED_BY = {
    "PyG: torch_geometric.datasets.Planetoid({root!r}, {name!r})": "Cora CiteSeer PubMed",
    "PyG: torch_geometric.datasets.Amazon({root!r}, {name!r})": "Computers Photo",
    "PyG: torch_geometric.datasets.Coauthor({root!r}, {name!r})": "CS Physics",
    "PyG: torch_geometric.datasets.TUDataset({root!r}, {name!r})": "COLLAB DD ENZYMES IMDB-BINARY MUTAG NCI1 PROTEINS REDDIT-BINARY",
    "PyG: torch_geometric.datasets.{name}({folder!r})": "Actor AmazonProducts Flickr QM9 Reddit Reddit2 WikiCS Yelp",
    "OGB: ogb.nodeproppred.NodePropPredDataset({name!r}, root={root!r})": "ogbn-arxiv ogbn-papers100M ogbn-products ogbn-proteins",
}
"Names of datasets, by the line that fetches one."


def load_dataset(
    name: str,
    *,
    root: str | os.PathLike[str] | None = None,
    split: int | str | None = None,
    task: Task = "auto",
    download: bool = True,
) -> Graph:
    """Open a dataset that PyG or OGB has fetched, a dataset folder, or an ``.npz`` file, by its name.

    Neither PyG nor OGB need be installed, and nothing in a file is run. PyG's graph, or graphs, are read from ``processed`` as by
    :func:`sagann.interop.read_pyg`, OGB's from ``raw`` and ``split`` as by :func:`sagann.interop.read_ogb`, both into memory; dataset folders
    are mapped. Where Cora or CiteSeer is missing, its published files are fetched (:mod:`sagann.interop.planetoid`); for other
    datasets the error shows the line of PyG or OGB that fetches them.

    Args:
        name: as 'cora' or 'ogbn-arxiv'; where several datasets have the name, with the folder above, as 'citationfull/cora'.
        root: folder that holds the datasets, or is the dataset; by default ``data``, ``dataset`` and ``datasets`` in the working folder.
        split: which one of several splits: a column of PyG's masks, or the name of OGB's scheme.
        task: what PyG's ``y`` is, as of :func:`sagann.interop.from_pyg`.
        download: fetch Cora and CiteSeer where they are missing, into the folder where PyG keeps them below ``root``, or below ``data``.
    Raises:
        DatasetError: there is no dataset of that name, several, or a file is damaged; or it cannot be fetched.
        InputError: an argument does not fit the dataset.
    Example:
        >>> load_dataset("demo")
        Graph(num_vertices=19717, num_edges=88726, num_features=500, num_classes=3)
    """
    require_type(name, str, where="load_dataset.name", hint="Pass a name, as 'cora'.")
    require_type(root, (str, os.PathLike), where="load_dataset.root", hint="Pass a folder.", optional=True)
    require_type(split, (int, str), where="load_dataset.split", hint="Pass a column or a name.", optional=True)
    roots = [Path(each) for each in (ROOTS if root is None else [root])]
    wanted = _plain(name)
    there = [found for each in roots for found in _datasets_in(each, wanted)]
    matches = [path for found, path in there if _plain(found) == wanted]
    matches = matches or [path for found, path in there if _plain(found).endswith(f"/{wanted}")]
    if not matches and name in EMBEDDED:
        return embedded_graph(name)
    if not matches and download and wanted in PUBLISHED:
        matches = [roots[0] / FOLDERS[wanted]]
        fetch_planetoid(wanted, matches[0])
    if not matches:
        raise _not_found(name, roots, [found for found, _ in there])
    if len(matches) > 1:
        raise DatasetError(
            f"several datasets have this name: {', '.join(str(path) for path in matches)} (in '{name}')",
            hint="Say which: give the folder above it in the name or as root, or open the path: sagann.load_graph, sagann.interop.read_pyg "
            "or read_ogb.",
        )
    return _opened(matches[0], name, split, task)


def _datasets_in(root: Path, wanted: str) -> Iterator[tuple[str, Path]]:
    """Names and paths of the datasets in a folder, and one folder deeper; or the folder itself, where it is the wanted one."""
    # A folder "data" may have "raw" and "processed" in it, and be no dataset.
    if _plain(root.resolve().name) == wanted and _is_dataset(root):
        yield root.resolve().name, root
        return
    for entry in _entries(root):
        for path in [entry] if _is_dataset(entry) else filter(_is_dataset, _entries(entry)):
            yield path.relative_to(root).as_posix(), path


def _entries(folder: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(islice(folder.iterdir(), _MOST_ENTRIES))
    return []


def _is_dataset(path: Path) -> bool:
    # A folder that the user may not look into has no dataset for them.
    with suppress(PermissionError):
        if not path.is_dir():
            return path.suffix == ".npz"
        return is_dataset(path) or any((path / name).is_dir() for name in ("raw", "processed"))
    return False


def _plain(name: str) -> str:
    """The form in which names are compared."""
    return name.lower().replace("-", "_").removesuffix(".npz")


def _opened(path: Path, name: str, split: int | str | None, task: Task) -> Graph:
    def refuse(kind: str, wrong_split: int | str | None, wrong_task: Task = task) -> None:
        given = {"split": wrong_split, "task": None if wrong_task == "auto" else wrong_task}
        if wrong := [f"{argument}={shown(value)}" for argument, value in given.items() if value is not None]:
            raise InputError(
                f"argument does not fit the dataset: {', '.join(wrong)}, for a dataset {kind} (in {path})",
                hint="Leave it out: a number is a column of PyG's masks, a name is a scheme of OGB, and a task is for PyG's y.",
            )

    if not path.is_dir() or is_dataset(path):
        refuse("that has one split", split)
        return open_graph(path) if path.is_dir() else read_npz(path)
    if (path / "raw").is_dir() and ((path / "split").is_dir() or _plain(path.name).startswith("ogbn_")):
        refuse("of OGB", split if isinstance(split, int) else None)
        return read_ogb(path, split=None if split is None else str(split))
    published = None if (path / "processed").is_dir() else read_planetoid(path, _plain(path.name))
    if published is not None:
        refuse("that has one split", split)
        return replace(published, name=path.name)
    refuse("of PyG", split if isinstance(split, str) else None, "auto")
    column = None if split is None else int(split)
    return replace(read_pyg(_file_of_pyg(path, name), split=column, task=task), name=path.name)


def _file_of_pyg(folder: Path, name: str) -> Path:
    """The file of all graphs in a dataset folder of PyG."""
    processed = folder / "processed"
    files = [each for each in _entries(processed) if each.suffix == ".pt" and each.name not in _TRANSFORMS]
    files = [each for each in files if each.name == "data.pt"] or files
    if len(files) == 1:
        return files[0]
    if files:
        raise DatasetError(
            f"the dataset has several files: {', '.join(each.name for each in files[:_MOST_NAMES])} (in {processed})",
            hint="Read one of them: sagann.interop.read_pyg(FILE).",
        )
    raise DatasetError(
        f"PyG has not processed the dataset yet: no graph in {processed} (in {folder})",
        hint=_how_to_fetch(name, folder.parent) or "Open it once with PyG, which processes what lies in raw.",
    )


def _not_found(name: str, roots: Sequence[Path], known: Sequence[str]) -> DatasetError:
    found = f"there are {listed([*map(shown, known)])}" if known else "there is none"
    own = "Fetch it with PyG or OGB, or make it with 'sagann data import'; root= names another folder."
    return DatasetError(
        f"dataset not found: looked in {', '.join(repr(str(root)) for root in roots)}, where {found} (in '{name:.80}')",
        hint=did_you_mean(name, [each.rpartition("/")[2].removesuffix(".npz") for each in known])
        + (_how_to_fetch(name, roots[0]) or own),
    )


def _how_to_fetch(name: str, root: Path) -> str:
    """The line of PyG or OGB that fetches a dataset below ``root``; an empty text where it is not known."""
    wanted = _plain(name).rpartition("/")[2]
    lines = {_plain(each): (line, each) for line, names in _FETCHED_BY.items() for each in names.split()}
    if wanted not in lines:
        return ""
    line, each = lines[wanted]
    return f"Fetch it once with {line.format(name=each, root=str(root), folder=str(root / each))}."
