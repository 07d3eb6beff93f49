from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sagann.plan.machine import Disk, Machine
from sagann.report.probes import Finding
from tests.cli.conftest import Invoke

MACHINE = Machine(
    name='An "odd" [bold]processor',
    num_cores=2,
    matmul_flops=4.321e11,
    stream_bytes=25 * 2.0**30,
    gather_bytes=20.5 * 2**30,
    gather_cached_bytes=60 * 2.0**30,
    cache_bytes=32 << 20,
    exp_per_s=5.5e9,
    copy_bytes=9.5 * 2**30,
    pick_bytes=6.5 * 2**30,
    step_s=61.7e-6,
    disks={
        "disk0": Disk(read_bytes_per_s=1.5 * 2**30, cached_bytes_per_s=4.5 * 2**30, write_bytes_per_s=512 * 2.0**20)
    },
)


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that were measured; the machine is always the same."""
    folders: list[Path] = []

    def probe(folder: Path, device: torch.device) -> Machine:
        assert device == torch.device("cpu")
        folders.append(folder)
        return MACHINE

    monkeypatch.setattr("sagann.runtime.forecasting.probe.probe", probe)
    return folders


def test_the_table(invoke: Invoke, probed: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = invoke("machine")
    assert outcome.code == 0
    assert outcome.out.splitlines()[0].rstrip() == 'Rates of An "odd" [bold]processor'
    for text in (
        "32.0 MiB",
        "432.1 GFLOP/s",
        "25.0 GiB/s read and written",
        "20.5 GiB/s of rows in memory, 60.0 GiB/s of rows in the cache",
        "5.5 G/s",
        "9.5 GiB/s; of rows picked here and there, by one thread, 6.5 GiB/s",
        "1.5 GiB/s read, 512.0 MiB/s written",
        "62 µs",
    ):
        assert text in outcome.out, text
    assert str(tmp_path) in outcome.err
    assert probed == [Path()]
    assert list(tmp_path.iterdir()) == []


def test_the_file(invoke: Invoke, probed: list[Path], tmp_path: Path) -> None:
    out, disk = tmp_path / "machine.toml", tmp_path / "disk"
    disk.mkdir()
    outcome = invoke("machine", "--out", out, "--disk", disk, "--quiet")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.endswith(f"Rates written to {out}\n")
    assert probed == [disk]
    assert Machine.from_toml(out.read_text(), where=str(out)) == MACHINE
    assert sorted(each.name for each in tmp_path.iterdir()) == ["disk", "machine.toml"]


def findings(*, core_ok: bool) -> list[Finding]:
    return [
        Finding(name="counting sort", ok=core_ok, detail="200000 keys"),
        Finding(name="CUDA", ok=False, detail="no CUDA device"),
    ]


def test_all_is_well(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sagann.report.probes.run_probes", lambda: findings(core_ok=True))
    outcome = invoke("doctor")
    assert outcome.code == 0
    for text in ("torch", "cores", "memory limit (cgroup)", "tensorboard", "counting sort", "no CUDA device"):
        assert text in outcome.out
    assert outcome.out.endswith("sagann works here.\n")


def test_what_is_broken_is_named(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sagann.report.probes.run_probes", lambda: findings(core_ok=False))
    outcome = invoke("doctor")
    assert outcome.code == 1
    assert outcome.out.endswith("sagann does not work here: counting sort.\n")


def test_what_is_missing_is_named(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sagann.report.probes.run_probes", lambda: findings(core_ok=True))
    monkeypatch.setattr("sagann.report.doctor_tables.core_versions", lambda: {"numba": None})
    outcome = invoke("doctor", "--quiet")
    assert outcome.code == 1
    assert outcome.err == ""
    assert "sagann does not work here: numba." in outcome.out
