"""Graphs on disk: our own folder format, and the importers that write it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sagann.import_config import (
    EdgeListFormat as EdgeListFormat,
    ImportOptions as ImportOptions,
    Progress as Progress,
)
from sagann.registry import import_lazily

if TYPE_CHECKING:
    from sagann.storage.dataset import (
        check_dataset as check_dataset,
        open_graph as open_graph,
        save_graph as save_graph,
    )
    from sagann.storage.edge_list import import_edge_list as import_edge_list
    from sagann.storage.load import load_graph as load_graph
    from sagann.storage.npz_graph import import_npz as import_npz, read_npz as read_npz
    from sagann.storage.rmat_dataset import write_rmat as write_rmat

__all__ = [
    "EdgeListFormat",
    "ImportOptions",
    "Progress",
    *import_lazily(
        __name__,
        {
            "dataset": "check_dataset open_graph save_graph",
            "edge_list": "import_edge_list",
            "load": "load_graph",
            "npz_graph": "import_npz read_npz",
            "rmat_dataset": "write_rmat",
        },
    ),
]
