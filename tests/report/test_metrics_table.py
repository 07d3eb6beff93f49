from __future__ import annotations

from rich.console import Console

from sagann.report.metrics_table import metrics_table


def test_a_row_per_split_and_a_column_per_metric() -> None:
    metrics = {"train": {"loss": 0.5, "accuracy": 1.0}, "test": {"accuracy": 0.75, "roc_auc": 0.9}, "val": {}}
    console = Console(width=100)
    with console.capture() as capture:
        console.print(metrics_table(metrics, title="Metrics"))
    rows = [[cell.strip() for cell in line.strip("│┃ ").split("│")] for line in capture.get().splitlines()]
    assert ["train", "0.5000", "1.0000", "-"] in rows
    assert ["test", "-", "0.7500", "0.9000"] in rows
    assert ["val", "-", "-", "-"] in rows
    assert "macro-F1" not in capture.get()
