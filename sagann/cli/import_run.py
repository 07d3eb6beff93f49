"""The work of ``sagann data import``: detect the format of a source, and stream it into a dataset folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sagann import interop
from sagann.errors import DatasetError, InputError, listed, require_choice
from sagann.import_config import EDGE_LISTS, EdgeListFormat, ImportOptions
from sagann.interop import FORMATS
from sagann.report.progress import import_progress
from sagann.report.terminal import Terminal
from sagann.storage import import_edge_list, import_npz
from sagann.storage.edge_list import describe_columns
from sagann.storage.npz_graph import arrays_left_out
from sagann.storage.regular_file import require_file

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
    of_others = {name for each in FORMATS.values() for name in each.arguments}
    arguments, is_edge_list = FORMATS[found].arguments, found in EDGE_LISTS
    if foreign := [name for name in given if name not in arguments and (name in of_others or not is_edge_list)]:
        raise InputError(
            f"option is for another format: {', '.join('--' + name.replace('_', '-') for name in foreign)} with "
            f"format {found} (in sagann data import)",
            hint="Leave it out, or say what the source is with --format.",
        )
    if found == "npz" and (names := arrays_left_out(source)):
        terminal.say(f"Arrays left out: {listed(names)}.")
    with import_progress(terminal) as progress:
        options = replace(options, progress=progress)
        match found:
            case "csv" | "parquet":
                columns = {name: value for name, value in given.items() if name not in _FILES}
                form = EdgeListFormat(**columns, kind=None if kind == "auto" else kind)
                files = {name: given.get(name) for name in _FILES}
                terminal.say(describe_columns(source, form, files.values()))
                import_edge_list(source, out, form=form, **files, options=options)
            case "npz":
                import_npz(source, out, options=options)
            case "pyg":
                split, task = _column_of_split(given.get("split_scheme")), given.get("task", "auto")
                interop.import_pyg(source, out, split=split, task=task, options=options, say=terminal.say)
            case _:
                more = {arguments[name]: value for name, value in given.items()}
                getattr(interop, f"import_{found}")(source, out, **more, options=options)


def detect_format(source: Path) -> str:
    """Tell the format of a file or folder by its name and content; a DatasetError where none is recognised."""
    names = [path.name for path in source.iterdir()] if source.is_dir() else [source.name]
    for kind, each in reversed([*FORMATS.items()]):
        if source.is_dir() and kind not in EDGE_LISTS:
            is_found = each.holds and {*each.holds} <= {*names}
        else:
            is_found = any(name.endswith(each.endings) for name in names)
        if is_found:
            return kind
    holds = (
        "neither metadata.yaml, nor raw and split, nor files of edges stand in it"
        if source.is_dir()
        else f"a file that ends in '{source.suffix}'"
    )
    raise DatasetError(
        f"format is not recognised: {holds} (in {source})",
        hint=f"Say what it is with --format: {', '.join(FORMATS)}.",
    )


def _column_of_split(text: str | None) -> int | None:
    """The column of a split in a file of PyG."""
    if text is not None and not (text.isascii() and text.isdigit()):
        raise InputError(
            f"a split of a file of PyG is a column of its masks: {text:.40}, expected an integer from 0 (in "
            "--split-scheme)",
            hint="Give its number, or leave it out where there is one split.",
        )
    return None if text is None else int(text)
