"""Bridges to other libraries and their datasets: PyG and its files, SciPy, OGB folders, GraphBolt folders; datasets by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sagann.registry import import_lazily

if TYPE_CHECKING:
    from sagann.interop.graphbolt import import_graphbolt as import_graphbolt
    from sagann.interop.named import load_dataset as load_dataset
    from sagann.interop.ogb import import_ogb as import_ogb, read_ogb as read_ogb
    from sagann.interop.pyg import from_pyg as from_pyg, to_pyg as to_pyg
    from sagann.interop.pyg_file import import_pyg as import_pyg, read_pyg as read_pyg
    from sagann.interop.pyg_model import from_pyg_model as from_pyg_model
    from sagann.interop.scipy_sparse import from_scipy as from_scipy

__all__ = [
    *import_lazily(
        __name__,
        {
            "graphbolt": "import_graphbolt",
            "named": "load_dataset",
            "ogb": "import_ogb read_ogb",
            "pyg": "from_pyg to_pyg",
            "pyg_file": "import_pyg read_pyg",
            "pyg_model": "from_pyg_model",
            "scipy_sparse": "from_scipy",
        },
    )
]
