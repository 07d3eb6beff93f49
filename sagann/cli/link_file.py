"""Link files: tables of pairs of vertices to score."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sagann.errors import DatasetError
from sagann.graph.checks import check_ids, check_types, numbered
from sagann.storage.tables import column_name, end_columns, named_column, open_table


def read_links(path: Path, *, with_types: bool) -> dict[str, Tensor]:
    """The columns 'src', 'dst' and, with types, 'type' of a table, by name or position: int64 [n] each.

    Raises:
        DatasetError: the file is no table, has too few columns, or a value is no integer.
    """
    table = open_table(path)
    wanted = ("src", "dst", "type") if with_types else ("src", "dst")
    names = end_columns(table)
    if with_types:
        by_name = "type" in table.names or named_column(table, "src") is not None
        names.append(column_name(table, "type" if by_name else 2))
    batches = [batch.columns for batch in table.batches(names, ["int64"] * len(names))]
    if not batches:
        raise DatasetError(
            f"there is no pair to score: the table has no row (in {path})",
            hint="Give a row for each pair: source, destination" + (", type." if with_types else "."),
        )
    return {
        name: torch.from_numpy(np.concatenate(columns))
        for name, columns in zip(wanted, zip(*batches, strict=True), strict=True)
    }


def check_links(pairs: Mapping[str, Tensor], num_vertices: int, num_edge_types: int, *, where: str) -> None:
    """Refuse an end that is no vertex, and a type that is none; ``where`` names the file."""
    if "type" in pairs:
        check_types(pairs["type"], num_edge_types, where=numbered(f"{where}, column type", "pair"))
    for name in ("src", "dst"):
        check_ids(pairs[name], num_vertices, "vertex", where=numbered(f"{where}, column {name}", "pair"))
