"""The work of ``sagann data import``: find out what a source is, and stream it into a dataset folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from sagann import interop, storage
from sagann.byte_size import parse_bytes
from sagann.cli.generate_run import report_dataset
from sagann.cli.options import Shared
from sagann.errors import DatasetError, InputError
from sagann.report.import_progress import import_progress
from sagann.report.terminal import Terminal
from sagann.storage import EdgeListFormat, ImportOptions
from sagann.storage.edge_list import columns_left_out
from sagann.storage.regular_file import require_file
from sagann.storage.tables import CSV_SUFFIXES, PARQUET_SUFFIXES


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceChoice:
    """What the options say of a source: of an edge list, but for ``split``, which is of an OGB folder."""

    src: str
    "Column of the source ids: a name, or a position in digits."
    dst: str
    "Column of the destination ids."
    weight: str | None
    "Column of the weights."
    edge_type: str | None
    "Column of the edge types."
    separator: str | None
    "Between the fields of a CSV file; None to go by the file's name."
    header: bool | None
    "Whether CSV files begin with names; None to look."
    features: Path | None
    "File of vertex features."
    labels: Path | None
    "File of vertex labels."
    split: str | None
    "Name of the split scheme; None for the only one."
    kind: str | None = None
    "The format that was asked for; None where it was detected."


def options_of(
    *,
    symmetrise: bool,
    coalesce: bool,
    drop_self_loops: bool,
    num_vertices: int | None,
    num_classes: int | None,
    name: str | None,
    memory: str,
    overwrite: bool,
) -> ImportOptions:
    """The options of an import, checked."""
    return ImportOptions(
        symmetrise=symmetrise,
        coalesce=coalesce,
        drop_self_loops=drop_self_loops,
        num_vertices=num_vertices,
        num_classes=num_classes,
        name=name,
        memory_bytes=parse_bytes(memory, where="--memory"),
        overwrite=overwrite,
    )


def import_run(
    source: Path, out: Path, *, kind: str, choice: SourceChoice, options: ImportOptions, shared: Shared
) -> None:
    """Import ``source`` into the folder ``out``, with a progress bar, and say what came of it."""
    terminal = Terminal(quiet=shared.quiet)
    if not source.exists():
        raise DatasetError(
            "source not found", value="no file or folder of that name", where=str(source), fix="Check the path."
        )
    if not source.is_dir():
        require_file(source)
    if kind == "auto":
        kind = detect_format(source)
    else:
        choice = replace(choice, kind=kind)
    if kind not in _IMPORTERS:
        raise InputError(
            "format is unknown",
            value=f"'{kind}', expected auto, {', '.join(_IMPORTERS)}",
            where="--format",
            fix="Choose one of these, or leave it out.",
        )
    _refuse_foreign_options(choice, kind)
    if kind in _EDGE_LISTS:
        _note_left_out(source, choice, terminal)
    with import_progress(terminal) as progress:
        _IMPORTERS[kind](source, out, choice, replace(options, progress=progress))
    report_dataset(out, terminal)


def detect_format(source: Path) -> str:
    """Tell what a file or folder is by its name and what stands in it.

    Raises:
        DatasetError: it is nothing that is known.
    """
    if source.is_file():
        return _detect_file(source)
    if (source / "metadata.yaml").is_file():
        return "graphbolt"
    if (source / "raw").is_dir() and (source / "split").is_dir():
        return "ogb"
    names = [path.name for path in source.iterdir()]
    if any(name.endswith(PARQUET_SUFFIXES) for name in names):
        return "parquet"
    if any(name.endswith(CSV_SUFFIXES) for name in names):
        return "csv"
    raise _not_recognised(source, "neither metadata.yaml, nor raw and split, nor files of edges stand in it")


def _detect_file(source: Path) -> str:
    if source.name == "metadata.yaml":
        return "graphbolt"
    for kind, endings in (("npz", (".npz",)), ("csv", CSV_SUFFIXES), ("parquet", PARQUET_SUFFIXES)):
        if source.name.endswith(endings):
            return kind
    raise _not_recognised(source, f"a file that ends in '{source.suffix}'")


def _not_recognised(source: Path, value: str) -> DatasetError:
    return DatasetError(
        "format is not recognised",
        value=value,
        where=str(source),
        fix=f"Say what it is with --format: {', '.join(_IMPORTERS)}.",
    )


def _refuse_foreign_options(choice: SourceChoice, kind: str) -> None:
    for_edge_lists = {
        "--src": choice.src != "0",
        "--dst": choice.dst != "1",
        "--weight": choice.weight is not None,
        "--edge-type": choice.edge_type is not None,
        "--separator": choice.separator is not None,
        "--header": choice.header is not None,
        "--features": choice.features is not None,
        "--labels": choice.labels is not None,
    }
    foreign = {} if kind in _EDGE_LISTS else for_edge_lists
    if kind != "ogb":
        foreign["--split-scheme"] = choice.split is not None
    wrong = [option for option, is_given in foreign.items() if is_given]
    if wrong:
        raise InputError(
            "option is for another format",
            value=f"{', '.join(wrong)} with format {kind}",
            where="sagann data import",
            fix="Leave it out, or say what the source is with --format.",
        )


def _note_left_out(source: Path, choice: SourceChoice, terminal: Terminal) -> None:
    if left_out := columns_left_out(source, _form(choice)):
        names = ", ".join(left_out[:10]) + (f" and {len(left_out) - 10} more" if len(left_out) > 10 else "")
        terminal.say(f"Columns left out: {names}. --weight takes one as edge weights, --edge-type as edge types.")


def _form(choice: SourceChoice) -> EdgeListFormat:
    return EdgeListFormat(
        src=_column(choice.src),
        dst=_column(choice.dst),
        weight=None if choice.weight is None else _column(choice.weight),
        edge_type=None if choice.edge_type is None else _column(choice.edge_type),
        separator="\t" if choice.separator in ("tab", "\\t") else choice.separator,
        header=choice.header,
        kind=choice.kind,
    )


def _import_edge_list(source: Path, out: Path, choice: SourceChoice, options: ImportOptions) -> None:
    storage.import_edge_list(
        source, out, form=_form(choice), features=choice.features, labels=choice.labels, options=options
    )


def _import_npz(source: Path, out: Path, _choice: SourceChoice, options: ImportOptions) -> None:
    storage.import_npz(source, out, options=options)


def _import_ogb(source: Path, out: Path, choice: SourceChoice, options: ImportOptions) -> None:
    interop.import_ogb(source, out, split=choice.split, options=options)


def _import_graphbolt(source: Path, out: Path, _choice: SourceChoice, options: ImportOptions) -> None:
    interop.import_graphbolt(source, out, options=options)


_IMPORTERS: dict[str, Callable[[Path, Path, SourceChoice, ImportOptions], None]] = {
    "csv": _import_edge_list,
    "parquet": _import_edge_list,
    "npz": _import_npz,
    "ogb": _import_ogb,
    "graphbolt": _import_graphbolt,
}

_EDGE_LISTS = ("csv", "parquet")


def _column(text: str) -> str | int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text
