"""The probe on the machine that runs the tests: rates that no processor exceeds and none falls short of."""

from __future__ import annotations

import time
from dataclasses import asdict, fields
from pathlib import Path

import pytest
import torch

from sagann.errors import InputError
from sagann.kernels import dense, memory
from sagann.plan.machine import Machine
from sagann.runtime.forecasting.probe import measured_machine, probe
from sagann.runtime.processor import cache_bytes, num_cores, processor_name
from tests.plan.machines import ROUND

pytestmark = [pytest.mark.slow, pytest.mark.alone]
# As users meet them: this package's tests make them small.
SIZES = [(memory, "SMALLEST_BYTES"), (dense, "SMALLEST_BYTES"), (dense, "BLOCK_BYTES")]
USUAL = [(module, name, getattr(module, name)) for module, name in SIZES]


def test_rates_are_those_of_a_processor_and_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, size in USUAL:
        monkeypatch.setattr(module, name, size)
    start_s = time.perf_counter()
    machine = probe(tmp_path)
    # Far below on an idle machine; tests may run beside others.
    assert time.perf_counter() - start_s < 40
    assert (machine.name, machine.num_cores, machine.cache_bytes) == (processor_name(), num_cores(), cache_bytes())
    # At most two units of 16 lanes at 6 GHz, a multiply-add being two.
    threads = torch.get_num_threads()
    assert 1e9 < machine.matmul_flops < threads * 2 * 16 * 2 * 6e9
    for rate in (machine.stream_bytes, machine.copy_bytes, machine.pick_bytes, machine.gather_bytes):
        assert 2e8 < rate < 1e13
    # A copy moves each byte twice; one thread moves no more than all of them, streamed stores aside.
    assert 2 * machine.copy_bytes < 3 * machine.stream_bytes
    # Two loads of 64 bytes a cycle.
    assert 0.7 * machine.gather_bytes < machine.gather_cached_bytes < threads * 2 * 64 * 6e9
    # One is a dozen operations or more, of which loads of rows hide only a part.
    assert 1e7 < machine.exp_per_s < machine.matmul_flops / 2
    for rate in asdict(machine.disks["disk0"]).values():
        assert 1e6 < rate < 1e11
    assert 1e-6 < machine.step_s < 0.02
    # Digits that mean nothing are not told.
    for each in fields(Machine):
        value = getattr(machine, each.name)
        if isinstance(value, float):
            assert value == float(f"{value:.4g}")
    assert list(tmp_path.iterdir()) == []
    assert Machine.from_toml(machine.to_toml(), where="machine.toml") == machine


def test_a_folder_that_cannot_be_used_is_refused_at_once(tmp_path: Path) -> None:
    start_s = time.perf_counter()
    with pytest.raises(InputError, match=r"the disk cannot be measured: .* \(in '.*none'\)\. Name a folder"):
        probe(tmp_path / "none")
    assert time.perf_counter() - start_s < 1


def test_a_machine_is_measured_once_per_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[Path] = []

    def measure(folder: Path, device: torch.device) -> Machine:
        measured.append(folder)
        return ROUND

    monkeypatch.setattr("sagann.runtime.forecasting.probe.probe", measure)
    assert measured_machine(tmp_path / "one") is measured_machine(tmp_path / "one") is ROUND
    measured_machine(tmp_path / "two")
    assert measured == [tmp_path / "one", tmp_path / "two"]
