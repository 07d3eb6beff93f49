"""The benchmark of rows for a device: every way gives the same rows, and the table says what crosses the bus."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from bench.cold_bytes import device as script
from bench.cold_bytes.device import COPY, Way, gathered_by_host, main, of_store, rows_of
from sagann.runtime.tiered import DeviceFeatures
from tests.runtime.device.drivers import SimulatedDevices

TINY = ["--rmat", "3000,30000", "--labelled", "0.1", "--width", "8", "--rounds", "1", "--at-least", "0", "--fanouts", "3,2"]  # fmt: skip
CPU = torch.device("cpu")


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
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "devices_of", lambda device: SimulatedDevices([1 << 30]))
    page = tmp_path / "page.md"
    assert main([*TINY, "--device", "cpu", "--hot", "0", "0.2", "1", "--threads", "2", "--out", str(page)]) == 0
    said = capsys.readouterr().out
    assert said == page.read_text()
    assert said.startswith("# Rows of features for a CUDA device\n")
    assert "the processor, " in said
    assert_complete(said)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_tiny_graph_is_measured_on_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "--hot", "0", "0.2", "1", "--threads", "2"]) == 0
    assert_complete(capsys.readouterr().out)


@pytest.mark.filterwarnings("ignore:The features cannot be read in place:RuntimeWarning")
def test_ways_give_the_rows_of_every_batch_also_where_nothing_is_pinned() -> None:
    features = torch.arange(40.0).reshape(20, 2)
    batches = [torch.tensor([3, 0, 19]), torch.tensor([7, 7])]
    stores = {
        "pinned": DeviceFeatures(features.clone(), 0.5, devices=SimulatedDevices([1 << 30])),
        "refused": DeviceFeatures(features.clone(), 0.5, devices=SimulatedDevices(refuse_at=0)),
    }
    ways = {name: way for key, store in stores.items() for name, way in of_store(store, key, batches).items()}
    assert list(ways) == [
        "pinned, rows(ids)",
        "pinned, its kernel",
        "refused, not pinned, rows(ids)",
        "refused, not pinned, its kernel",
    ]
    ways["host"] = gathered_by_host(features, batches, 1, CPU)
    for name, way in ways.items():
        for number, ids in enumerate(batches):
            assert torch.equal(way.rows(number), features[ids]), name
    # One row of five lies beyond the ten hot ones; far rows are on the device before the kernel begins.
    assert [way.hot_share for way in ways.values()] == [0.8, 0.8, 0.8, 0.8, 0.0]
    assert [round(way.bus_share, 3) for way in ways.values()] == [0.2, 0.2, 0.2, 0.0, 1.0]


def test_rates_are_those_of_all_rows_and_of_what_crosses_the_bus() -> None:
    def rows(number: int) -> Tensor:
        return torch.empty(0)

    ways = {
        COPY: Way(rows=rows, hot_share=None, bus_share=1.0),
        "half": Way(rows=rows, hot_share=0.5, bus_share=0.5),
        "all": Way(rows=rows, hot_share=1.0, bus_share=0.0),
    }
    assert rows_of(ways, {COPY: 0.5, "half": 0.25, "all": 0.125}, 10**10)[2:] == [
        f"| {COPY} | 500.00 | 20.0 | - | 20.0 | 1.00 |",
        "| half | 250.00 | 40.0 | 50.0% | 20.0 | 1.00 |",
        "| all | 125.00 | 80.0 | 100.0% | - | - |",
    ]
