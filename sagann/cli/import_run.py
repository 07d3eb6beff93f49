"""The work of ``sagann data import``: detect the format of a source, and stream it into a dataset folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from sagann.cli.data import FORMATS
from sagann.errors import DatasetError, InputError, listed, require_choice
from sagann.interop import import_graphbolt, import_ogb, import_pyg
from sagann.report.progress import import_progress
from sagann.report.terminal import Terminal
from sagann.storage import EdgeListFormat, ImportOptions, import_edge_list, import_npz
from sagann.storage.edge_list import describe_columns
from sagann.storage.import_source import READING, WRITING, Progress
from sagann.storage.npz_graph import arrays_left_out
from sagann.storage.regular_file import require_file
from sagann.storage.tables import CSV_SUFFIXES, PARQUET_SUFFIXES

if TYPE_CHECKING:
    from sagann.interop.pyg import Task

_TABLES = (("parquet", PARQUET_SUFFIXES), ("csv", CSV_SUFFIXES))
"Formats of edge lists, with the endings of their files."
_EDGE_LISTS = tuple(kind for kind, _ in _TABLES)


def import_run(
    source: Path,
    out: Path,
    *,
    kind: str,
    form: EdgeListFormat,
    features: Path | None,
    labels: Path | None,
    targets: Path | None,
    split: str | None,
    task: str | None,
    options: ImportOptions,
    terminal: Terminal,
) -> None:
    """Import ``source`` into the folder ``out``, with a progress bar.

    The arguments are those of ``sagann data import``; ``kind`` is one of FORMATS, or 'auto' to detect it.
    """
    if not source.exists():
        raise DatasetError(
            f"source not found: no file or folder of that name (in {source})", hint="Check the path."
        )
    if not source.is_dir():
        require_file(source)
    require_choice(kind, ("auto", *FORMATS), what="format is unknown", where="--format")
    found = detect_format(source) if kind == "auto" else kind
    files = {"features": features, "labels": labels, "targets": targets}
    _refuse_foreign_options(found, form, files, split_scheme=split, task=task)
    if found in _EDGE_LISTS:
        form = replace(form, kind=None if kind == "auto" else kind)
        terminal.say(describe_columns(source, form, files.values()))
    if found == "npz" and (names := arrays_left_out(source)):
        terminal.say(f"Arrays left out: {listed(names)}.")
    num_read: dict[str, int] = {}
    with import_progress(terminal) as progress:
        options = replace(options, progress=_counting(progress, num_read))
        match found:
            case "npz":
                import_npz(source, out, options=options)
            case "ogb":
                import_ogb(source, out, split=split, options=options)
            case "graphbolt":
                import_graphbolt(source, out, options=options)
            case "pyg":
                import_pyg(
                    source,
                    out,
                    split=_column_of_split(split),
                    task=cast("Task", task or "auto"),
                    options=options,
                    say=terminal.say,
                )
            case _:
                import_edge_list(source, out, form=form, **files, options=options)
    # A table that was cut at the end of a line looks whole: only its reader knows how many rows it should have.
    if num_read:
        terminal.say(f"Rows read: {', '.join(f'{count} of {name}' for name, count in num_read.items())}.")


def _counting(progress: Progress, num_read: dict[str, int]) -> Progress:
    """The progress of an import, which also writes the numbers of rows that are read to ``num_read``, by the name of their array.

    Splits are left out: many formats list ids, and their masks have a row for each vertex, however many ids were read.
    """

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


def column(text: str | None) -> str | int | None:
    """A column as an option names it: a position where the text is a short number, else a name; None for no option."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else text


def _column_of_split(text: str | None) -> int | None:
    """The column of a split in a file of PyG."""
    number = column(text)
    if isinstance(number, str):
        raise InputError(
            f"a split of a file of PyG is a column of its masks: {number:.40}, expected an integer from 0 (in "
            "--split-scheme)",
            hint="Give its number, or leave it out where there is one split.",
        )
    return number


def _not_recognised(source: Path, value: str) -> DatasetError:
    return DatasetError(
        f"format is not recognised: {value} (in {source})",
        hint=f"Say what it is with --format: {', '.join(FORMATS)}.",
    )


def _refuse_foreign_options(
    kind: str,
    form: EdgeListFormat,
    files: Mapping[str, Path | None],
    *,
    split_scheme: str | None,
    task: str | None,
) -> None:
    """Refuse options that the importer of this format would ignore."""
    given: list[str] = []
    if kind not in _EDGE_LISTS:
        default = EdgeListFormat()
        given = [each.name for each in fields(form) if getattr(form, each.name) != getattr(default, each.name)]
        given += [name for name, file in files.items() if file is not None]
    if kind not in ("ogb", "pyg") and split_scheme is not None:
        given.append("split_scheme")
    if kind != "pyg" and task is not None:
        given.append("task")
    if given:
        raise InputError(
            f"option is for another format: {', '.join('--' + name.replace('_', '-') for name in given)} with "
            f"format {kind} (in sagann data import)",
            hint="Leave it out, or say what the source is with --format.",
        )
