"""Result files: predictions as CSV, Parquet or NPY, embeddings as NPY; each whole or absent."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
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
    folder, what, hint = path.parent, "file cannot be written", "Choose a file in a folder that exists."
    if path.suffix not in suffixes:
        what, value = "file type is unknown", f"'{path.suffix}', expected {' or '.join(suffixes)}"
        hint = "Give the file one of these endings."
    elif path.is_dir():
        value = "a folder stands there"
    elif not folder.is_dir():
        value = f"there is no folder '{folder}'"
    elif not os.access(folder, os.W_OK):
        value, hint = (
            f"the folder '{folder}' may not be written to",
            "Choose a file in a folder that you may write to.",
        )
    elif owner := owner_of(path):
        what += " among those of a dataset or a run"
        value, hint = f"they belong to {owner}", "Choose a file in another folder."
    elif path.is_file() and not overwrite:
        what, value = "a file stands there already", "overwriting was not asked for"
        hint = "Choose another name, or replace it with --overwrite."
    elif os.path.lexists(path) and not path.is_file():
        what, value = "what stands there is not a file", "a device, a pipe or a broken link"
        hint = "Choose another name."
    else:
        return
    raise InputError(f"{what}: {value} (in {option} {path})", hint=hint)


def owner_of(path: Path) -> Path | None:
    """The dataset or run to whose own folders ``path`` would be added; None if there is none."""
    inside = path.parent.resolve()
    for folder in (inside, *inside.parents):
        if is_dataset(folder):
            return folder
        # Predictions may be written into a run folder itself, but not into its subfolders.
        if folder != inside and RunFolder(folder).is_described:
            return folder
    return None


def write_predictions(
    path: Path,
    probabilities: Tensor,
    class_names: Sequence[str],
    order: Tensor,
    *,
    multi_label: bool,
    of: str = "vertex",
) -> None:
    """Write predictions of vertices, or of graphs (``of='graph'``), from float32 [n, C], as .csv, .parquet or .npy; an existing file is replaced.

    Row i of the file is row ``order[i]`` of ``probabilities``.

    With one class per vertex, the likeliest class and its probability are written; as .npy, a structured array with the
    fields vertex, class and probability. With several classes per vertex, a column per class is written; as .npy, a
    plain matrix. The first column is named as ``of``.
    """
    write = _write_npy if path.suffix == ".npy" else _write_table
    if multi_label and path.suffix == ".npy":
        write_embeddings(path, probabilities, order)
        return
    columns: dict[str, Any] = {of: np.arange(len(probabilities), dtype=np.int64)}
    if multi_label:
        unique = len({*class_names, of}) == len(class_names) + 1
        names = class_names if unique else [f"{number}:{name}" for number, name in enumerate(class_names)]
        columns |= {name: column[order].numpy() for name, column in zip(names, probabilities.T, strict=True)}
    else:
        probability, classes = (column[order].numpy() for column in probabilities.max(dim=1))
        columns["class"] = classes
        if path.suffix != ".npy":
            columns["class_name"] = _named(class_names, classes)
        columns["probability"] = probability
    write_aside(path, lambda aside: write(aside, columns))


def write_values(path: Path, values: Tensor, order: Tensor, *, of: str = "vertex") -> None:
    """Write the values of a regression on vertices, or on graphs (``of='graph'``), float32 [n] or [n, T], as .csv, .parquet or .npy; an existing file is replaced.

    Row i of the file is row ``order[i]`` of ``values``. A table has the columns vertex (or graph) and prediction (prediction_0, ... for T of 2 or
    more); as .npy, it is a plain array.
    """
    if path.suffix == ".npy":
        write_embeddings(path, values, order)
        return
    columns: dict[str, Any] = {of: np.arange(len(values), dtype=np.int64)}
    if values.ndim == 1:
        columns["prediction"] = values[order].numpy()
    else:
        columns |= {f"prediction_{number}": column[order].numpy() for number, column in enumerate(values.T)}
    write_aside(path, lambda aside: _write_table(aside, columns))


def write_links(path: Path, pairs: Mapping[str, Tensor], probabilities: Tensor) -> None:
    """Write pairs of vertices with their probabilities, float32 [n], as .csv or .parquet; as .npy the probabilities alone."""
    if path.suffix == ".npy":
        write_aside(path, lambda aside: write_npy(aside, probabilities))
        return
    columns = {name: ids.numpy() for name, ids in pairs.items()} | {"probability": probabilities.numpy()}
    write_aside(path, lambda aside: _write_table(aside, columns))


def write_embeddings(path: Path, rows: Tensor, order: Tensor) -> None:
    """Write a float32 array [num_vertices, F] or [num_vertices] as .npy; an existing file is replaced. Row i of the file is row ``order[i]``."""
    pieces = order.split(max(1, _AT_ONCE_BYTES // max(1, rows[:1].nbytes)))
    write_aside(path, lambda aside: write_npy(aside, rows, (rows[piece] for piece in pieces)))


def _named(names: Sequence[str], ids: np.ndarray) -> Any:
    """The name of each id, as an Arrow array: in NumPy every name would take the memory of the longest."""
    import pyarrow as pa

    return pa.array(names, pa.large_string()).take(pa.array(ids))


def _write_table(path: Path, columns: Mapping[str, Any]) -> None:
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    table = pa.table(columns)
    if path.suffix == ".csv":
        pyarrow.csv.write_csv(table, path, pyarrow.csv.WriteOptions(quoting_style="needed"))
    else:
        pyarrow.parquet.write_table(table, path)


def _write_npy(path: Path, columns: Mapping[str, Any]) -> None:
    fields = [(name, column.dtype) for name, column in columns.items()]
    rows = np.empty(len(next(iter(columns.values()))), dtype=fields)
    for name, column in columns.items():
        rows[name] = column
    _save_array(path, rows)


def _save_array(path: Path, rows: np.ndarray) -> None:
    # NumPy would add the ending .npy to a path.
    with path.open("wb") as file:
        np.save(file, rows, allow_pickle=False)


def write_aside(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file aside and rename it, so that a reader never sees half a file.

    It is written in a folder of its own, into which nobody else can put a link to another file.
    """
    try:
        with TemporaryDirectory(prefix=".tmp-", dir=path.parent, ignore_cleanup_errors=True) as folder:
            aside = Path(folder, path.name)
            write(aside)
            aside.replace(path)
    except OSError as error:
        # NumPy's error for a full disk names neither file nor reason.
        raise InputError(
            f"result file cannot be written: {error.strerror or str(error)} (in {path})",
            hint="Free some space, or choose a file on another disk; nothing was left behind.",
        ) from error
