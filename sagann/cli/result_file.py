"""Result files: predictions as CSV, Parquet or NPY, embeddings as NPY; each whole or absent."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from torch import Tensor

from sagann.errors import InputError
from sagann.storage.folder import is_dataset
from sagann.storage.npy import write_npy
from sagann.train.run_folder import RunFolder

_AT_ONCE_BYTES = 32 << 20


def check_target(path: Path, suffixes: Sequence[str], *, overwrite: bool, option: str = "--out") -> None:
    """Refuse a file that cannot or should not be written, before the work is done. ``option`` names the file, for messages."""
    folder, elsewhere = path.parent, "Choose a file in a folder that exists, and that you may write to."
    if path.suffix not in suffixes:
        what = f"file type is unknown: '{path.suffix}', expected {' or '.join(suffixes)}"
        hint = "Give the file one of these endings."
    elif not folder.is_dir():
        what, hint = f"file cannot be written: there is no folder '{folder}'", elsewhere
    elif not os.access(folder, os.W_OK):
        what, hint = f"file cannot be written: the folder '{folder}' may not be written to", elsewhere
    elif owner := owner_of(path):
        what = f"file cannot be written among those of a dataset or a run: they belong to {owner}"
        hint = "Choose a file in another folder."
    elif os.path.lexists(path) and not path.is_file():
        what, hint = "file cannot be written: what stands there is not a file", "Choose another name."
    elif path.is_file() and not overwrite:
        what = "a file stands there already: overwriting was not asked for"
        hint = "Choose another name, or replace it with --overwrite."
    else:
        return
    raise InputError(f"{what} (in {option} {path})", hint=hint)


def owner_of(path: Path) -> Path | None:
    """The dataset in whose folder, or the run in whose subfolders, ``path`` would lie; None if there is none."""
    inside = path.parent.resolve()
    for folder in (inside, *inside.parents):
        # Predictions may be written into a run folder itself.
        if is_dataset(folder) or (folder != inside and RunFolder(folder).exists):
            return folder
    return None


def write_classes(
    path: Path, probabilities: Tensor, names: Sequence[str], order: Tensor, *, of: str, multi_label: bool
) -> None:
    """Write the likeliest class of each vertex, or graph, and its probability; of several labels, a column with the probability of each class.

    Row i of the file is row ``order[i]`` of ``probabilities`` [n, C]; ``of`` is what a row is, which names the first column.
    """
    if multi_label:
        if len({*names, of}) <= len(names):
            names = [f"{number}:{name}" for number, name in enumerate(names)]
        write_values(path, probabilities, names, order, of=of)
        return
    probability, classes = (column[order].numpy() for column in probabilities.max(dim=1))
    columns: dict[str, Any] = {of: np.arange(len(order)), "class": classes}
    if path.suffix != ".npy":
        import pyarrow as pa

        # In NumPy every name would take the memory of the longest.
        columns["class_name"] = pa.array(names, pa.large_string()).take(pa.array(classes))
    write_columns(path, columns | {"probability": probability})


def write_values(path: Path, values: Tensor, names: Sequence[str], order: Tensor, *, of: str) -> None:
    """Write a column for each column of ``values`` [n, F], as :func:`write_classes` does, or of [n] one; as .npy, the array alone."""
    if path.suffix == ".npy":
        write_rows(path, values, order)
        return
    columns = zip(names, values.reshape(len(order), len(names)).T, strict=True)
    write_columns(path, {of: np.arange(len(order)), **{name: each[order].numpy() for name, each in columns}})


def write_columns(path: Path, columns: Mapping[str, Any]) -> None:
    """Write columns of one length as .csv, .parquet, or .npy with a field for each column; an existing file is replaced."""
    with _aside(path) as aside:
        if path.suffix == ".npy":
            dtype = [(name, column.dtype) for name, column in columns.items()]
            np.save(aside, np.rec.fromarrays(list(columns.values()), dtype=dtype), allow_pickle=False)
            return
        import pyarrow as pa
        import pyarrow.csv
        import pyarrow.parquet

        if path.suffix == ".csv":
            pyarrow.csv.write_csv(pa.table(columns), aside, pyarrow.csv.WriteOptions(quoting_style="needed"))
        else:
            pyarrow.parquet.write_table(pa.table(columns), aside)


def write_rows(path: Path, rows: Tensor, order: Tensor | None = None) -> None:
    """Write an array [n, F] or [n] as .npy; an existing file is replaced. Row i of the file is row ``order[i]``."""
    pieces: Iterable[Tensor] | None = None
    if order is not None:
        at_once = order.split(max(1, _AT_ONCE_BYTES // max(1, rows[:1].nbytes)))
        pieces = (rows[piece] for piece in at_once)
    with _aside(path) as aside:
        write_npy(aside, rows, pieces)


@contextmanager
def _aside(path: Path) -> Iterator[Path]:
    """A file that takes the place of ``path`` after the block, in a folder of its own, into which nobody else can put a link."""
    try:
        with TemporaryDirectory(prefix=".tmp-", dir=path.parent, ignore_cleanup_errors=True) as folder:
            yield (aside := Path(folder, path.name))
            aside.replace(path)
    except OSError as error:
        # NumPy's error for a full disk names neither file nor reason.
        raise InputError(
            f"result file cannot be written: {error.strerror or str(error)} (in {path})",
            hint="Free some space, or choose a file on another disk; nothing was left behind.",
        ) from error
