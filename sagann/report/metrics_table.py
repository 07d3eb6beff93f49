"""Metrics as a table: a row per split, a column per metric."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from sagann.train import METRICS, Metrics

_TITLES = {"micro_f1": "micro-F1", "macro_f1": "macro-F1", "roc_auc": "ROC-AUC"}


def metrics_table(metrics: Mapping[str, Metrics], *, title: str | None = None) -> Table:
    """Lay out metrics.

    Args:
        metrics: split to metric to value; a metric that a split lacks is shown as '-'.
        title: title of the table.
    """
    table = Table(title=title, title_justify="left")
    table.add_column("split")
    shown = [name for name in METRICS if any(name in found for found in metrics.values())]
    for name in shown:
        table.add_column(_TITLES.get(name, name), justify="right")
    for split, found in metrics.items():
        table.add_row(split, *(f"{found[name]:.4f}" if name in found else "-" for name in shown))
    return table
