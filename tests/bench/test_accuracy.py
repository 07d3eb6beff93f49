"""The command that reproduces published accuracies: what it asks for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch_geometric", reason="PyG is not installed: pip install sagann[bench]")

from bench.accuracy.__main__ import main


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
