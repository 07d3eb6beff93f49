"""Commands that compare with PyG: what they ask for, and their tables at a tiny scale."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch_geometric", reason="PyG is not installed: pip install sagann[bench]")

from bench import pyg_models
from bench.accuracy.__main__ import main
from bench.device import __main__ as script


def test_the_graphs_folder_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv("SAGANN_DATA", raising=False)
    files = ["--results", str(tmp_path / "results.jsonl"), "--out", str(tmp_path / "report.md")]
    command = ["accuracy", "--only", "none of them", *files]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit):
        main()
    assert "where the graphs are: pass --data FOLDER, or set SAGANN_DATA" in capsys.readouterr().err
    # A report of what is there reads no graph.
    monkeypatch.setattr(sys, "argv", [*command, "--report-only"])
    main()
    assert (tmp_path / "report.md").exists()


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


def test_a_row_for_every_model(capsys: pytest.CaptureFixture[str]) -> None:
    pyg_models.main(
        ["--graphs", "tiny", "--models", "GCN", "PNA", "--hidden", "8", "--rounds", "1", "--threads", "1"]
    )
    lines = [text for text in capsys.readouterr().out.splitlines() if text.startswith("|")]
    header, _, *rows = [line.strip("| ").split(" | ") for line in lines]
    assert header == pyg_models.COLUMNS.split(" | ")
    assert [row[:2] for row in rows] == [["tiny", "GCN"], ["tiny", "PNA"]]
    assert all(float(number) > 0 for row in rows for number in row[2:])
