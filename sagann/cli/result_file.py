"""Result files: predictions as CSV, Parquet or NPY, embeddings as NPY; each whole or absent."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from sagann.errors import InputError
from sagann.storage.folder import is_dataset
from sagann.train.run_folder import RunFolder


def check_target(path: Path, suffixes: Sequence[str], *, overwrite: bool, option: str = "--out") -> None:
    """Refuse a file that could or should not be written, before the work is done.

    Args:
        path: the file.
        suffixes: the endings that it may have.
        overwrite: whether a file that stands there may be replaced.
        option: what names the file, for messages.
    Raises:
        InputError: the ending is unknown, the folder is missing or belongs to a dataset or to a run's checkpoints,
            or something stands there that may not be replaced.
    """
    if path.suffix not in suffixes:
        raise InputError(
            "file type is unknown",
            value=f"'{path.suffix}', expected {' or '.join(suffixes)}",
            where=f"{option} {path}",
            fix="Give the file one of these endings.",
        )
    if not path.parent.is_dir() or path.is_dir():
        raise InputError(
            "file cannot be written",
            value="a folder stands there" if path.is_dir() else f"there is no folder '{path.parent}'",
            where=f"{option} {path}",
            fix="Choose a file in a folder that exists.",
        )
    if owner := owner_of(path):
        raise InputError(
            "file cannot be written among those of a dataset or a run",
            value=f"they belong to {owner}",
            where=f"{option} {path}",
            fix="Choose a file in another folder.",
        )
    if os.path.lexists(path) and not (overwrite and path.is_file()):
        is_file = path.is_file()
        raise InputError(
            "a file stands there already" if is_file else "what stands there is not a file",
            value="overwriting was not asked for" if is_file else "a device, a pipe or a broken link",
            where=f"{option} {path}",
            fix="Choose another name, or replace it with --overwrite." if is_file else "Choose another name.",
        )


def owner_of(path: Path) -> Path | None:
    """The dataset or run whose own files would stand beside ``path``; None where it is free."""
    inside = path.parent.resolve()
    for folder in (inside, *inside.parents):
        if is_dataset(folder):
            return folder
        # A run folder itself is a good place for its predictions; only the folders in it are the trainer's.
        if folder != inside and RunFolder(folder).is_described:
            return folder
    return None


def write_predictions(path: Path, probabilities: Tensor, class_names: Sequence[str], *, multi_label: bool) -> None:
    """Write what a model predicts.

    Args:
        path: .csv, .parquet or .npy; what stands there is replaced.
        probabilities: float32 [num_vertices, C].
        class_names: C names.
        multi_label: whether a vertex may have several classes: then a column per class is written, else the
            likeliest class of each vertex. As .npy, the former is a plain matrix, the latter a structured array
            with the fields vertex, class and probability.
    """
    write = {".csv": _write_csv, ".parquet": _write_parquet, ".npy": _write_npy}[path.suffix]
    if multi_label and path.suffix == ".npy":
        write_embeddings(path, probabilities)
        return
    columns = {"vertex": np.arange(len(probabilities), dtype=np.int64)}
    if multi_label:
        unique = len({*class_names, "vertex"}) == len(class_names) + 1
        names = class_names if unique else [f"{number}:{name}" for number, name in enumerate(class_names)]
        columns |= dict(zip(names, probabilities.numpy().T, strict=True))
    else:
        best = probabilities.max(dim=1)
        columns["class"] = best.indices.numpy()
        if path.suffix != ".npy":
            columns["class_name"] = _named(class_names, best.indices.numpy())
        columns["probability"] = best.values.numpy()
    _replace(path, lambda aside: write(aside, columns))


def write_embeddings(path: Path, rows: Tensor) -> None:
    """Write a float32 matrix [num_vertices, F] as .npy; what stands at ``path`` is replaced."""
    _replace(path, lambda aside: _save_array(aside, rows.numpy()))


Columns = dict[str, Any]
"By name: NumPy's, and Arrow's where they are text."


def _named(names: Sequence[str], ids: np.ndarray) -> Any:
    """The name of each id, end to end: in NumPy each would take as much as the longest."""
    import pyarrow as pa

    return pa.array(names, pa.large_string()).take(pa.array(ids))


def _write_csv(path: Path, columns: Columns) -> None:
    import pyarrow as pa
    import pyarrow.csv

    pyarrow.csv.write_csv(pa.table(columns), path, pyarrow.csv.WriteOptions(quoting_style="needed"))


def _write_parquet(path: Path, columns: Columns) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    pyarrow.parquet.write_table(pa.table(columns), path)


def _write_npy(path: Path, columns: Columns) -> None:
    fields = [(name, column.dtype) for name, column in columns.items()]
    rows = np.empty(len(columns["vertex"]), dtype=fields)
    for name, column in columns.items():
        rows[name] = column
    _save_array(path, rows)


def _save_array(path: Path, rows: np.ndarray) -> None:
    # By an open file: a path would be given the ending .npy.
    with path.open("wb") as file:
        np.save(file, rows, allow_pickle=False)


def _replace(path: Path, write: Callable[[Path], None]) -> None:
    """Write aside and rename, so that a reader never sees half a file.

    Raises:
        InputError: the disk refuses.
    """
    aside = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    try:
        write(aside)
        aside.replace(path)
    except OSError as error:
        # NumPy's own, of a disk that is full, says neither file nor reason.
        raise InputError(
            "result file cannot be written",
            value=error.strerror or str(error),
            where=str(path),
            fix="Free some space, or choose a file on another disk; nothing was left behind.",
        ) from error
    finally:
        aside.unlink(missing_ok=True)
