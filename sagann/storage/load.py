"""Graphs opened by path or name: a dataset folder, an ``.npz`` file, or an embedded graph."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

from sagann.errors import DatasetError, did_you_mean, require_type
from sagann.graph import Graph

_MOST_ENTRIES = 1000
EMBEDDED = ("demo",)
"Names of the graphs that come with sagann."


def load_graph(source: str | os.PathLike[str], *, verify: bool = True) -> Graph:
    """Open a graph by path or name.

    Args:
        source: a dataset folder (opened by memory map), an ``.npz`` file (read into memory), or the name of
            an embedded graph. A file or folder goes before an embedded graph of the same name.
        verify: compare the checksums of a folder's files when a Trainer or a Predictor checks the values.
    Raises:
        DatasetError: there is no graph of that name, or the file or folder is no graph.
        InputError: ``source`` is no path.
    """
    require_type(source, (str, os.PathLike), where="load_graph", hint="Pass a path or a name.")
    path = Path(source)
    # Imported here: a run opens one kind of graph.
    if path.is_dir():
        from sagann.storage.dataset import open_graph

        return open_graph(path, verify=verify)
    if path.exists():
        if path.suffix == ".npz":
            from sagann.storage.npz_graph import read_npz

            return read_npz(path)
        raise DatasetError(
            f"file cannot be opened as a graph: its name ends in '{path.suffix}', expected a dataset folder or "
            f"an .npz file (in {path})",
            hint="Convert it with 'sagann data import'.",
        )
    if str(source) in EMBEDDED:
        return embedded_graph(str(source))
    near = (
        each.name for each in islice(path.parent.glob("*"), _MOST_ENTRIES) if each.is_dir() or each.suffix == ".npz"
    )
    raise DatasetError(
        f"graph not found: no file, folder or embedded graph of that name (in '{source}')",
        hint=f"{did_you_mean(path.name, [*EMBEDDED, *near])}Give a folder made by 'sagann data import', an .npz file, or one of: {', '.join(EMBEDDED)}.",
    )


def embedded_graph(name: str) -> Graph:
    """Make an embedded graph."""
    assert name in EMBEDDED
    from sagann.graph.sbm import demo_graph

    return demo_graph()
