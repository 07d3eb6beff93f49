"""Graphs on disk: our own folder format, and the importers that write it.

Some importers need libraries that take long to load (pyarrow, Numba). Their names are imported when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sagann.import_config import EdgeListFormat, ImportOptions, Progress
from sagann.storage.dataset import check_dataset, dataset_info, open_graph, save_graph
from sagann.storage.load import load_graph
from sagann.storage.npz_graph import import_npz, read_npz

if TYPE_CHECKING:
    from sagann.storage.edge_list import import_edge_list
    from sagann.storage.rmat_dataset import write_rmat

_HOMES = {
    "import_edge_list": "sagann.storage.edge_list",
    "write_rmat": "sagann.storage.rmat_dataset",
}

__all__ = [
    "EdgeListFormat",
    "ImportOptions",
    "Progress",
    "check_dataset",
    "dataset_info",
    "import_edge_list",
    "import_npz",
    "load_graph",
    "open_graph",
    "read_npz",
    "save_graph",
    "write_rmat",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'sagann.storage' has no attribute {name!r}")
