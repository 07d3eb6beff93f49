"""A graph as the parent wrote it for its workers: a folder of ``.npy`` files, in-edges grouped by destination."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

ARRAYS = ("indptr", "src", "features", "labels", "train", "val")


@dataclass(frozen=True)
class Stored:
    """A graph without self-loops whose every edge has its reverse."""

    indptr: Tensor
    "int64 [num_vertices + 1]"
    src: Tensor
    "int32 [num_edges], ascending within a destination"
    features: Tensor
    "float32 [num_vertices, F]"
    labels: Tensor
    "int64 [num_vertices]"
    train: Tensor
    "int64 ids of the vertices to train on"
    val: Tensor
    "int64 ids of the vertices that an evaluation measures besides"
    num_classes: int

    @property
    def num_vertices(self) -> int:
        return len(self.indptr) - 1

    def dst(self) -> Tensor:
        """The destination of every edge, int32 [num_edges]."""
        ids = torch.arange(self.num_vertices, dtype=torch.int32)
        return torch.repeat_interleave(ids, self.indptr.diff())

    def with_self_loops(self) -> Stored:
        """The same with the edge v -> v for every vertex, ids still ascending."""
        src = torch.cat([self.src, torch.arange(self.num_vertices, dtype=torch.int32)])
        dst = torch.cat([self.dst(), torch.arange(self.num_vertices, dtype=torch.int32)])
        order = torch.argsort(dst.long() * self.num_vertices + src.long())
        indptr = self.indptr + torch.arange(self.num_vertices + 1)
        return replace(self, indptr=indptr, src=src[order])

    def without_edges(self) -> Stored:
        """The same vertices; for contestants that keep the edges in a form of their own."""
        none = torch.empty(0)
        return replace(self, indptr=none, src=none)

    def with_sparse_features(self) -> Stored:
        """The same with features as ``torch.sparse_csr``."""
        return replace(self, features=self.features.to_sparse_csr())

    def gcn_weights(self) -> Tensor:
        """1 / sqrt(degree of src * degree of dst) of every edge, float32 [num_edges]."""
        scale = self.gcn_scale()
        return scale[self.src.long()] * scale[self.dst().long()]

    def gcn_scale(self) -> Tensor:
        """1 / sqrt(degree) of every vertex, float32 [num_vertices]."""
        return self.indptr.diff().to(torch.float32).pow(-0.5)


def read_stored(folder: Path) -> Stored:
    """Read a folder into memory."""
    arrays = {name: torch.from_numpy(np.load(folder / f"{name}.npy")) for name in ARRAYS}
    return Stored(**arrays, num_classes=json.loads((folder / "graph.json").read_text())["num_classes"])


def map_dataset(folder: Path) -> Stored:
    """Map a dataset folder of sagann's. Its edges and features take no memory of the process's own until they are copied."""

    def mapped(name: str) -> Tensor:
        # Copy on write, as PyTorch knows no tensor that cannot be written to.
        return torch.from_numpy(np.load(folder / f"{name}.npy", mmap_mode="c"))

    train = mapped("split_train").nonzero().squeeze(1)
    arrays = {name: mapped(name) for name in ("indptr", "features", "labels")}
    return Stored(**arrays, src=mapped("indices"), train=train, val=train[:0], num_classes=0)


def write_stored(folder: Path, stored: Stored) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ARRAYS:
        np.save(folder / f"{name}.npy", getattr(stored, name).numpy())
    (folder / "graph.json").write_text(json.dumps({"num_classes": stored.num_classes}))
