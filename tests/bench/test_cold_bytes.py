"""Cold bytes: the table of scores, and what crosses the bus to a device, on small graphs."""

from __future__ import annotations

import sys

import pytest

from bench.cold_bytes import device as script, scores
from bench.cold_bytes.device import COPY, main
from tests.runtime.device.drivers import SimulatedDevices


def test_no_score_takes_more_reads_than_the_oracle(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--rmat", "2000,20000", "--epochs", "2", "--fanouts", "5,3", "8,4", "--hot", "0.1", "1"]
    monkeypatch.setattr(sys, "argv", ["scores", *words])
    scores.main()
    head, _, *rows = capsys.readouterr().out.splitlines()[-6:]
    assert head == (
        "| graph | fanouts | hot | no tiering, MiB | degree | rpr | wrpr | vip | other epochs | oracle "
        "| wrpr / degree | vip / degree | wrpr / oracle | vip / oracle |"
    )
    found = [row.strip("| ").split(" | ") for row in rows]
    assert [row[:3] for row in found] == [
        ["R-MAT, 0.002M vertices, 0.02M edges", fanouts, hot]
        for fanouts in ("5, 3", "8, 4")
        for hot in ("10%", "100%")
    ]
    for row in found[::2]:
        *others, oracle = (float(share.removesuffix("% less")) for share in row[4:10])
        assert 0 < max(others) <= oracle < 100
    # Where all rows are hot, nothing is read from the cold tier.
    assert found[1][4:] == found[3][4:] == ["100.0% less"] * 6 + ["-"] * 4


TINY = ["--rmat", "3000,30000", "--labelled", "0.1", "--width", "8", "--rounds", "1", "--at-least", "0", "--fanouts", "3,2"]  # fmt: skip


def _cells(text: str) -> dict[str, list[str]]:
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {cells[0]: cells[1:] for cells in rows}


def assert_complete(text: str) -> None:
    """Every way has its row; the more rows are hot, the fewer cross the bus."""
    cells = _cells(text)
    assert list(cells) == [
        "way",
        COPY,
        *(f"{part}% hot, {what}" for part in (0, 20, 100) for what in ("rows(ids)", "its kernel")),
        "index_select, copy; 1 threads",
        "index_select, copy; 2 threads",
        "index_select on the device",
    ]
    hot = [float(cells[f"{part}% hot, its kernel"][2].removesuffix("%")) for part in (0, 20, 100)]
    assert hot[0] == 0 < hot[1] < hot[2] == 100
    assert cells[COPY][4] == "1.00"
    assert cells["100% hot, rows(ids)"][3:] == ["-", "-"]
    assert float(cells["0% hot, rows(ids)"][4]) >= 0


def test_a_tiny_graph_is_measured_on_the_processor(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "devices_of", lambda device: SimulatedDevices([1 << 30]))
    assert main([*TINY, "--device", "cpu", "--hot", "0", "0.2", "1", "--threads", "2"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("# Rows of features for a CUDA device\n")
    assert "the processor, " in said
    assert_complete(said)
