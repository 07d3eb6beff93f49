"""Bridges to other libraries and their datasets: PyG and its files, SciPy, OGB folders, GraphBolt folders; datasets by name."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sagann.interop.graphbolt import import_graphbolt as import_graphbolt
    from sagann.interop.named import load_dataset as load_dataset
    from sagann.interop.ogb import import_ogb as import_ogb, read_ogb as read_ogb
    from sagann.interop.pyg import from_pyg as from_pyg, to_pyg as to_pyg
    from sagann.interop.pyg_file import import_pyg as import_pyg, read_pyg as read_pyg
    from sagann.interop.pyg_model import from_pyg_model as from_pyg_model
    from sagann.interop.scipy_sparse import from_scipy as from_scipy


_HOMES = {
    "from_pyg": "sagann.interop.pyg",
    "from_pyg_model": "sagann.interop.pyg_model",
    "from_scipy": "sagann.interop.scipy_sparse",
    "import_graphbolt": "sagann.interop.graphbolt",
    "import_ogb": "sagann.interop.ogb",
    "import_pyg": "sagann.interop.pyg_file",
    "load_dataset": "sagann.interop.named",
    "read_ogb": "sagann.interop.ogb",
    "read_pyg": "sagann.interop.pyg_file",
    "to_pyg": "sagann.interop.pyg",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'sagann.interop' has no attribute {name!r}")
