"""The script that measures a device: one table, on whatever there is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("torch_geometric", reason="PyG is not installed: pip install sagann[bench]")

from bench.device import __main__ as script
from bench.device.clock import alternate
from bench.device.place import where

CPU = torch.device("cpu")
TINY = [
    "--device",
    "cpu",
    "--datasets",
    "tiny",
    "--hidden",
    "16",
    "--rounds",
    "1",
    "--at-least",
    "0",
    "--copied",
    "1",
]


@pytest.mark.thorough
@pytest.mark.peers
def test_one_table_of_epochs_gathers_and_streamed_epochs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "table.md"
    asked = ["--models", "gcn", "--variants", "edge_index", "csr", "--streamed", "gcn"]
    assert script.main([*TINY, *asked, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert said == out.read_text()
    lines = [line.split(" | ") for line in said.splitlines() if line.startswith("| ") and "|--" not in line][1:]
    whats = [cells[0].removeprefix("| ") for cells in lines]
    assert whats[0] == "epoch, gcn"
    assert whats[1:6] == [
        f"gather, {name}, 16 features" for name in ("sum", "weighted sum", "max", "gated", "softmax")
    ]
    assert whats[6:] == ["streamed within 1/8, gcn"]
    assert all(len(cells) == 8 for cells in lines)
    for cells in lines:
        ours, theirs, ratio = float(cells[2]), float(cells[4]), float(cells[5])
        expected = ours / theirs if cells[0].startswith("| streamed") else theirs / ours
        assert ratio == pytest.approx(expected, rel=0.02, abs=0.005)
        assert "out of memory" not in cells[7]
        assert "another loss" not in cells[7]
    assert lines[0][3].startswith("PyG, ")


def test_without_a_device_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert script.main([]) == 1
    captured = capsys.readouterr()
    assert "There is nothing to measure. no such device: 'cuda'" in captured.err
    assert not captured.out


def test_what_fails_leaves_the_rest_of_the_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise RuntimeError("no kernel image | is available")

    monkeypatch.setattr(script, "gathers", failing)
    monkeypatch.setattr(
        script,
        "streamed",
        lambda *_: script.Line(
            what="streamed",
            on="tiny",
            ours_s=1.0,
            against="P = 1",
            theirs_s=None,
            ratio=None,
            target="t",
            is_reached=False,
        ),
    )
    assert script.main([*TINY, "--models", "--streamed", "gcn"]) == 1
    said = capsys.readouterr().out
    assert "| gathers | tiny | - | - | - | - | failed | RuntimeError: no kernel image / is available |" in said
    assert "| streamed | tiny | 1 | P = 1 | - | - | t: NO |" in said


def test_contestants_take_turns() -> None:
    order: list[str] = []
    contestants = {name: (lambda name=name: order.append(name)) for name in "ab"}
    found = alternate(contestants, rounds=2, at_least_s=0.0, device=CPU)
    assert order == [*"aabb", *"abab"]
    assert all(len(seconds) == 2 for seconds in found.values())


def test_a_page_states_device_host_and_versions() -> None:
    said = where(CPU)
    assert said.startswith("the processor, ")
    assert f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, " in said
    assert "torch_geometric 2." in said
