"""Access curves as tables and pictures."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rich.console import Console

from sagann.report.access_curves import curves_table, write_curves

CURVES = {"score": torch.arange(101) / 100, "oracle": (torch.arange(101) / 100).sqrt()}


def test_a_row_per_share_and_a_column_per_curve() -> None:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(curves_table(CURVES, title="Reads"))
    rows = [[cell.strip() for cell in line.strip("│┃ ").split("│")] for line in capture.get().splitlines()]
    assert ["10%", "10.0%", "31.6%"] in rows
    assert ["50%", "50.0%", "70.7%"] in rows


@pytest.mark.parametrize("num_rows", [1, 7, 100_000])
def test_a_picture_is_drawn(tmp_path: Path, num_rows: int) -> None:
    pytest.importorskip("matplotlib")
    write_curves(tmp_path / "curves.png", {"oracle": torch.linspace(0, 1, num_rows + 1)}, title="Reads")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
