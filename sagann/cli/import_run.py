"""The work of ``sagann data import``: detect the format of a source, and stream it into a dataset folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sagann.cli.data import FORMATS
from sagann.errors import DatasetError, InputError, listed, require_choice
from sagann.import_config import EDGE_LISTS, EdgeListFormat, ImportOptions, Progress
from sagann.interop import import_graphbolt, import_ogb, import_pyg
from sagann.report.progress import import_progress
from sagann.report.terminal import Terminal
from sagann.storage import import_edge_list, import_npz
from sagann.storage.edge_list import describe_columns
from sagann.storage.import_source import READING, WRITING
from sagann.storage.npz_graph import arrays_left_out
from sagann.storage.regular_file import require_file
from sagann.storage.tables import CSV_SUFFIXES, PARQUET_SUFFIXES

_TABLES = (("parquet", PARQUET_SUFFIXES), ("csv", CSV_SUFFIXES))
"Formats of edge lists, with the endings of their files."
_READ_BY = {"split_scheme": ("ogb", "pyg"), "task": ("pyg",)}
"Formats that read an option; edge lists read all others."
_FILES = ("features", "labels", "targets")
"Options that name files beside an edge list."


def import_run(
    source: Path, out: Path, *, kind: str, given: Mapping[str, Any], options: ImportOptions, terminal: Terminal
) -> None:
    """Import ``source`` into the folder ``out``, with a progress bar; ``kind`` is one of FORMATS, or 'auto', and ``given`` has options of some formats."""
    if not source.exists():
        raise DatasetError(
            f"source not found: no file or folder of that name (in {source})", hint="Check the path."
        )
    if not source.is_dir():
        require_file(source)
    require_choice(kind, ("auto", *FORMATS), what="format is unknown", where="--format")
    found = detect_format(source) if kind == "auto" else kind
    if foreign := [name for name in given if found not in _READ_BY.get(name, EDGE_LISTS)]:
        raise InputError(
            f"option is for another format: {', '.join('--' + name.replace('_', '-') for name in foreign)} with "
            f"format {found} (in sagann data import)",
            hint="Leave it out, or say what the source is with --format.",
        )
    if found == "npz" and (names := arrays_left_out(source)):
        terminal.say(f"Arrays left out: {listed(names)}.")
    num_read: dict[str, int] = {}
    with import_progress(terminal) as progress:
        options = replace(options, progress=_counting(progress, num_read))
        match found:
            case "npz":
                import_npz(source, out, options=options)
            case "ogb":
                import_ogb(source, out, split=given.get("split_scheme"), options=options)
            case "graphbolt":
                import_graphbolt(source, out, options=options)
            case "pyg":
                column, task = given.get("split_scheme"), given.get("task", "auto")
                if column is not None and not (column.isascii() and column.isdigit()):
                    raise InputError(
                        f"a split of a file of PyG is a column of its masks: {column:.40}, expected an integer from 0 (in --split-scheme)",
                        hint="Give its number, or leave it out where there is one split.",
                    )
                split = None if column is None else int(column)
                import_pyg(source, out, split=split, task=task, options=options, say=terminal.say)
            case _:
                columns = {name: value for name, value in given.items() if name not in _FILES}
                form = EdgeListFormat(**columns, kind=None if kind == "auto" else kind)
                files = {name: given.get(name) for name in _FILES}
                terminal.say(describe_columns(source, form, files.values()))
                import_edge_list(source, out, form=form, **files, options=options)
    # A table that was cut at the end of a line looks whole: only its reader knows how many rows it should have.
    if num_read:
        terminal.say(f"Rows read: {', '.join(f'{count} of {name}' for name, count in num_read.items())}.")


def _counting(progress: Progress, num_read: dict[str, int]) -> Progress:
    """The progress of an import, which also writes the numbers of rows that are read to ``num_read``, by the name of their array, but for splits."""

    def told(done: int, total: int | None, unit: str, stage: str) -> None:
        name = "edges" if stage == READING else stage.removeprefix(WRITING)
        if name != stage and unit != "entries" and not name.startswith(("split_", "graph_split_")):
            num_read[name] = done
        progress(done, total, unit, stage)

    return told


def detect_format(source: Path) -> str:
    """Tell the format of a file or folder by its name and content; a DatasetError where none is recognised."""
    if not source.is_dir():
        if source.name == "metadata.yaml":
            return "graphbolt"
        for kind, endings in (("npz", (".npz",)), ("pyg", (".pt", ".pth")), *_TABLES):
            if source.name.endswith(endings):
                return kind
        raise _not_recognised(source, f"a file that ends in '{source.suffix}'")
    if (source / "metadata.yaml").is_file():
        return "graphbolt"
    if (source / "raw").is_dir() and (source / "split").is_dir():
        return "ogb"
    names = [path.name for path in source.iterdir()]
    for kind, endings in _TABLES:
        if any(name.endswith(endings) for name in names):
            return kind
    raise _not_recognised(source, "neither metadata.yaml, nor raw and split, nor files of edges stand in it")


def _not_recognised(source: Path, value: str) -> DatasetError:
    return DatasetError(
        f"format is not recognised: {value} (in {source})",
        hint=f"Say what it is with --format: {', '.join(FORMATS)}.",
    )
