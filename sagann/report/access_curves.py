"""Access curves: the share of reads that the hottest rows take, as a table and as a picture.

References:
    Graph Neural Network Training with Data Tiering, 2021, Fig. 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from rich.table import Table
from torch import Tensor

from sagann.storage.picture import new_figure, write_figure

HOT_SHARES = (0.01, 0.05, 0.1, 0.25, 0.5)
"Shares of all rows that are hot, in the table."
_MOST_POINTS = 1000


def curves_table(curves: Mapping[str, Tensor], *, title: str) -> Table:
    """A row per share of hot rows, a column per curve of :func:`sagann.tiering.access_curve`: the share of reads that the hot rows take."""
    table = Table(title=title, title_justify="left")
    table.add_column("hot rows", justify="right")
    for name in curves:
        table.add_column(name, justify="right")
    for hot_share in HOT_SHARES:
        shares = (float(curve[int(hot_share * (len(curve) - 1))]) for curve in curves.values())
        table.add_row(f"{hot_share:.0%}", *(f"{share:.1%}" for share in shares))
    return table


def write_curves(path: Path, curves: Mapping[str, Tensor], *, title: str) -> None:
    """Draw curves, by name, as a PNG file: rows from hot to cold, and the share of reads that they take together.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    figure = new_figure(6, 4, feature="a picture of access curves")
    axis = figure.subplots()
    for name, curve in curves.items():
        num_rows = len(curve) - 1
        points = torch.linspace(0, num_rows, min(num_rows, _MOST_POINTS) + 1, dtype=torch.float64).round().long()
        style = "--" if name == "oracle" else "-"
        axis.plot((100 * points / max(1, num_rows)).numpy(), (100 * curve[points]).numpy(), style, label=name)
    axis.set(xlim=(0, 100), ylim=(0, 100), xlabel="hottest rows, %", ylabel="reads, %")
    axis.set_title(title, loc="left", size=9)
    axis.grid(visible=True, alpha=0.3)
    axis.legend(loc="lower right", frameon=False)
    write_figure(path, figure)
