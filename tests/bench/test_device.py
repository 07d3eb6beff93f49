"""The script that measures a device: one table, on whatever there is."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch_geometric", reason="PyG is not installed: pip install sagann[bench]")

from bench.device import __main__ as script

TINY = "--device cpu --datasets tiny --hidden 16 --rounds 1 --at-least 0 --copied 1"


@pytest.mark.thorough
@pytest.mark.peers
def test_one_table_of_epochs_gathers_and_streamed_epochs(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--models", "gcn", "--variants", "edge_index", "csr", "--streamed", "gcn"]
    asked += ["--recorded", "gcn"]
    assert script.main([*TINY.split(), *asked]) == 0
    said = capsys.readouterr().out
    lines = [line.split(" | ") for line in said.splitlines() if line.startswith("| ") and "|--" not in line][1:]
    whats = [cells[0].removeprefix("| ") for cells in lines]
    assert whats[0] == "epoch, gcn"
    assert whats[1:6] == [
        f"gather, {name}, 16 features" for name in ("sum", "weighted sum", "max", "gated", "softmax")
    ]
    assert whats[6:] == ["streamed within 1/8, gcn", "recorded, gcn", "recorded, gcn"]
    told = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert [len(each["rows"]) for each in told] == [1, 5, 1, 2]
    assert all(len(cells) == 7 for cells in lines)
    for cells in lines:
        ours, theirs, ratio = float(cells[2]), float(cells[4]), float(cells[5])
        expected = ours / theirs if cells[0].startswith("| streamed") else theirs / ours
        assert ratio == pytest.approx(expected, rel=0.02, abs=0.005)
        assert "out of memory" not in cells[6]
        assert "another loss" not in cells[6]
    assert lines[0][3].startswith("PyG, ")
