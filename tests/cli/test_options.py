"""Options of commands, the rates that `sagann machine` shows, and the findings of `sagann doctor`."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
import torch
import typer

from sagann.cli import options
from sagann.cli.options import Given, Shared, command, option, switch
from sagann.options import Arguments, integers, options as of_run, options_of
from sagann.plan.machine import Disk, Machine
from sagann.report.probes import Finding
from tests.cli.conftest import Invoke


@of_run("model", "Model")
@dataclass(frozen=True, kw_only=True)
class Sizes:
    width: Annotated[int, integers(1, 9)] = 4
    "Width [units]."
    norm: bool = False
    "A norm."
    extras: Arguments = field(default_factory=dict)
    "More."


def call(function: Any, *arguments: str, shared: Shared | None = None) -> Any:
    app = typer.Typer()
    app.command()(function)
    built = typer.main.get_command(app)
    return built.main(list(arguments), prog_name="x", standalone_mode=False, obj=shared or Shared())


@command(*options_of(Sizes).values())
def act(
    shared: Shared,
    given: Given,
    run: Annotated[Path, option("Folder.", "RUN_DIR")],
    force: Annotated[bool, switch("--force", "Force.")] = False,
) -> int:
    """Act."""
    seen.append((shared, given, run, force))
    return 7


seen: list[tuple[Shared, Given, Path, bool]] = []


@pytest.mark.parametrize("has_device", [False, True])
def test_libraries_that_ask_for_what_no_command_needs_find_none(
    has_device: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    unneeded = ("scipy.linalg", "torch.distributed.fsdp", "torch.distributed.tensor", "triton")
    hidden: list[str] = []

    def import_module(name: str) -> None:
        hidden.extend(each for each in unneeded if each in sys.modules)
        raise ImportError("a release that does not go without")

    monkeypatch.setattr("torch.accelerator.is_available", lambda: has_device)
    monkeypatch.setattr(options, "importlib", SimpleNamespace(import_module=import_module))
    for name in unneeded:
        monkeypatch.delitem(sys.modules, name, raising=False)
    Shared(is_program=True).load_kernels()
    Shared(is_program=True).load_compiler()
    assert hidden == list(unneeded[: 3 if has_device else 4])
    assert sys.modules.keys().isdisjoint(unneeded)


def test_a_command_gets_its_settings_options_and_what_is_shared() -> None:
    seen.clear()
    shared = Shared()
    arguments = ("--run", "a", "--force", "--width", "8", "--no-norm", "--extra", "k=1", "--extra", "l=x", "-q")
    assert call(act, *arguments, shared=shared) == 7
    assert seen == [(shared, {"width": 8, "norm": False, "extras": {"k": 1, "l": "x"}}, Path("a"), True)]
    assert (shared.quiet, shared.debug) == (True, False)


def test_settings_that_are_not_given_are_left_out() -> None:
    seen.clear()
    call(act, "--run", "a")
    ((_, given, run, force),) = seen
    assert (given, run, force) == ({}, Path("a"), False)


def test_help_shows_brackets_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    call(act, "--help")
    shown = capsys.readouterr().out
    assert "Width [units]. [default: 4]" in shown
    assert "Act." in shown


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


def test_rates_are_printed_as_toml(
    invoke: Invoke, probed: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = invoke("machine")
    assert outcome.code == 0
    assert Machine.from_toml(outcome.out, where="output") == MACHINE
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
