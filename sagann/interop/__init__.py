"""Bridges to other libraries and their datasets: PyG and its files, SciPy, OGB folders, GraphBolt folders; datasets by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from sagann.import_config import EDGE_LISTS
from sagann.registry import import_lazily

if TYPE_CHECKING:
    from sagann.interop.graphbolt import import_graphbolt as import_graphbolt
    from sagann.interop.named import load_dataset as load_dataset
    from sagann.interop.ogb import import_ogb as import_ogb, read_ogb as read_ogb
    from sagann.interop.pyg import from_pyg as from_pyg, to_pyg as to_pyg
    from sagann.interop.pyg_file import import_pyg as import_pyg, read_pyg as read_pyg
    from sagann.interop.pyg_model import from_pyg_model as from_pyg_model
    from sagann.interop.scipy_sparse import from_scipy as from_scipy


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """A format that ``sagann data import`` reads by the function ``import_NAME`` of this package, or of :mod:`sagann.storage`."""

    endings: tuple[str, ...] = ()
    "Endings of the names of its files."
    holds: tuple[str, ...] = ()
    "Names of files and folders in a folder of this format."
    arguments: Mapping[str, str] = field(default_factory=dict)
    "Arguments of the function, by the options of the command that give them."


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        **{name: Format(endings=endings) for name, endings in EDGE_LISTS.items()},
        "npz": Format(endings=(".npz",)),
        "ogb": Format(holds=("raw", "split"), arguments={"split_scheme": "split"}),
        "graphbolt": Format(endings=("metadata.yaml",), holds=("metadata.yaml",)),
        "pyg": Format(endings=(".pt", ".pth"), arguments={"split_scheme": "split", "task": "task"}),
    }
)
"Formats by name. A source is tried for the last one first."

__all__ = [
    "FORMATS",
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
    ),
]
