"""Cora and CiteSeer as their authors publish them: fetched once, known by their SHA-256, and read without PyG.

A raw dataset is eight files, ``raw/ind.cora.x`` and so on, in the folder where PyG keeps them too. Seven are pickles. They are unpickled only if
they are the published files, bit by bit.

References:
    Yang, Cohen, Salakhutdinov, Revisiting Semi-Supervised Learning with Graph Embeddings, ICML 2016 (the splits). The files are those of
    https://github.com/tkipf/gcn.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import urllib.request
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sagann.errors import DatasetError, in_one_line
from sagann.graph import Graph, Topology, remove_self_loops, symmetrise
from sagann.storage.folder import write_whole

Array = np.ndarray[Any, Any]

FOLDERS: Mapping[str, str] = {"cora": "Cora", "citeseer": "CiteSeer"}
"Names of the datasets' folders, as PyG has them."
SOURCE = "https://raw.githubusercontent.com/tkipf/gcn/39a4089fe72ad9f055ed6fdb9746abdcfebc4d81/gcn/data/"
"Where the files are fetched from."
PUBLISHED: Mapping[str, Mapping[str, str]] = {
    "cora": {
        "x": "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab",
        "y": "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
        "tx": "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
        "ty": "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
        "allx": "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
        "ally": "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
        "graph": "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
        "test.index": "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
    },
    "citeseer": {
        "x": "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
        "y": "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
        "tx": "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
        "ty": "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
        "allx": "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
        "ally": "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
        "graph": "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
        "test.index": "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
    },
}
"SHA-256 of each file, by dataset."
NUM_VALIDATED = 500
"Vertices to validate on: those behind the ones to train on."
_MOST_BYTES = 2**20
_PATIENCE_S = 30.0


def fetch_planetoid(name: str, folder: Path) -> None:
    """Fetch the files of a dataset into ``folder/raw``; files that are there and right are kept.

    Args:
        name: 'cora' or 'citeseer'.
        folder: the dataset's folder, which is made.
    """
    for path, digest in _files(folder, name).items():
        if path.is_file() and _digest(path.read_bytes()) == digest:
            continue
        url = f"{SOURCE}{path.name}"
        try:
            with urllib.request.urlopen(url, timeout=_PATIENCE_S) as answer:
                content: bytes = answer.read(_MOST_BYTES + 1)
        except (OSError, ValueError) as error:
            raise DatasetError(
                f"the dataset is not here, and cannot be fetched: {in_one_line(error)} (in {url})",
                hint=f"Connect to the network, or put the file at {path}.",
            ) from error
        if _digest(content) != digest:
            raise DatasetError(
                f"what came is not the published file: SHA-256 {_digest(content)}, expected {digest} (in {url})",
                hint=f"Something on the way has changed it; put the published file at {path}.",
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)


def read_planetoid(folder: Path, name: str) -> Graph | None:
    """Read a dataset: the graph that PyG makes of it, with -1 for the label of a vertex that has none.

    Args:
        folder: the dataset's folder.
        name: of the dataset; 'cora' or 'citeseer' can be read.
    Returns:
        the graph; None where the folder does not hold the published files, of which nothing is unpickled then.
    """
    files = _files(folder, name)
    content = [path.read_bytes() for path in files if path.is_file()]
    if not files or [_digest(each) for each in content] != [*files.values()]:
        return None
    return _graph_of(dict(zip(PUBLISHED[name], content, strict=True)))


def _files(folder: Path, name: str) -> dict[Path, str]:
    """The files of a dataset, and their SHA-256; none of a dataset of another name."""
    return {folder / "raw" / f"ind.{name}.{part}": digest for part, digest in PUBLISHED.get(name, {}).items()}


def _graph_of(content: Mapping[str, bytes]) -> Graph:
    parts = {part: _unpickled(each) for part, each in content.items() if part != "test.index"}
    test = np.array(content["test.index"].split(), dtype=np.int64)
    # Rows of tx stand in the order of the ids in the file. An id that is not in the file has neither features nor a label.
    num_vertices, first = int(test.max()) + 1, len(parts["ally"])
    features = np.zeros((num_vertices, parts["allx"]._shape[1]), dtype=np.float32)
    answers = np.zeros((num_vertices, parts["ally"].shape[1]), dtype=np.int64)
    features[:first], answers[:first] = parts["allx"].dense(), parts["ally"]
    features[np.sort(test)], answers[np.sort(test)] = parts["tx"].dense(), parts["ty"]
    features[test], answers[test] = features[np.sort(test)], answers[np.sort(test)]
    labels = np.where(answers.any(1), answers.argmax(1), -1)
    number, num_train, neighbours = torch.arange(num_vertices), len(parts["y"]), parts["graph"]
    # Edges in both directions, each once, without self-loops.
    src = torch.tensor([vertex for vertex, known in neighbours.items() for _ in known])
    dst = torch.tensor([*chain.from_iterable(neighbours.values())])
    topology = Topology.from_coo(src=src, dst=dst, num_src=num_vertices)
    topology = symmetrise(remove_self_loops(Graph(topology=topology))).topology
    return Graph(
        topology=topology,
        features=torch.from_numpy(features),
        labels=torch.from_numpy(labels),
        num_classes=answers.shape[1],
        splits={
            "train": number < num_train,
            "val": (number >= num_train) & (number < num_train + NUM_VALIDATED),
            "test": torch.isin(number, torch.from_numpy(test)),
        },
    )


class _Matrix:
    """A sparse matrix of SciPy, of which the pickle gives the attributes."""

    indptr: Array
    indices: Array
    data: Array
    _shape: tuple[int, int]

    def dense(self) -> Array:
        found = np.zeros(self._shape, dtype=np.float32)
        rows = np.repeat(np.arange(self._shape[0]), np.diff(self.indptr))
        np.add.at(found, (rows, self.indices), self.data)
        return found


class _Unpickler(pickle.Unpickler):
    """Reads what Python 2 and older versions of NumPy and SciPy have written."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if global_name == "csr_matrix":
            return _Matrix
        return super().find_class(module_name.replace("numpy.core", "numpy._core"), global_name)


def _unpickled(content: bytes) -> Any:
    return _Unpickler(io.BytesIO(content), encoding="latin1").load()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
