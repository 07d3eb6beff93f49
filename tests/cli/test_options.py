from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
import typer

from sagann.cli import options
from sagann.cli.options import Given, Shared, command, option, switch
from sagann.cli.settings import Setting
from sagann.errors import InputError

WIDTH = Setting(section="model", name="width", kind="integer", help="Width [units].", panel="Model", default="4")
NORM = Setting(section="model", name="norm", kind="flag", help="A norm.", panel="Model")
EXTRA = Setting(section="train", name="extras", kind="options", help="More.", panel="Train")


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    run: Annotated[Path, option("Folder.", "RUN_DIR")]
    device: Annotated[str, option("Device.")] = "auto"


def call(function: Any, *arguments: str, shared: Shared | None = None) -> Any:
    app = typer.Typer()
    app.command()(function)
    built = typer.main.get_command(app)
    return built.main(list(arguments), prog_name="x", standalone_mode=False, obj=shared or Shared())


@command(WIDTH, NORM, EXTRA)
def act(
    shared: Shared, given: Given, record: Record, force: Annotated[bool, switch("--force", "Force.")] = False
) -> int:
    """Act."""
    seen.append((shared, given, record, force))
    return 7


seen: list[tuple[Shared, Given, Record, bool]] = []


@pytest.mark.parametrize("has_device", [False, True])
def test_the_compiler_finds_triton_where_a_device_runs_its_kernels(
    has_device: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden: list[bool] = []

    def import_module(name: str) -> None:
        hidden.append("triton" in sys.modules)

    monkeypatch.setattr("torch.accelerator.is_available", lambda: has_device)
    monkeypatch.setattr(options, "importlib", SimpleNamespace(import_module=import_module))
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    Shared(is_program=True).load_compiler()
    assert hidden == [not has_device]
    assert "triton" not in sys.modules


def test_a_command_gets_its_settings_records_and_what_is_shared() -> None:
    seen.clear()
    shared = Shared()
    arguments = ("--run", "a", "--force", "--width", "8", "--no-norm", "--extra", "k=1", "--extra", "l=x", "-q")
    assert call(act, *arguments, shared=shared) == 7
    assert seen == [
        (shared, {"width": 8, "norm": False, "extras": {"k": 1, "l": "x"}}, Record(run=Path("a")), True)
    ]
    assert (shared.quiet, shared.debug) == (True, False)


def test_settings_that_are_not_given_are_left_out() -> None:
    seen.clear()
    call(act, "--run", "a", "--device", "cpu")
    ((_, given, record, force),) = seen
    assert (given, record.device, force) == ({}, "cpu", False)


def test_a_bad_value_is_refused_by_the_setting() -> None:
    with pytest.raises(InputError, match="width is not an integer: 'many'"):
        call(act, "--run", "a", "--width", "many")


def test_help_shows_brackets_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    call(act, "--help")
    shown = capsys.readouterr().out
    assert "Width [units]. [default: 4]" in shown
    assert "Act." in shown


def test_the_file_of_a_model_is_noted_by_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shared = Shared()
    shared.add_user_file("gcn")
    shared.add_user_file("mine.py:Net")
    assert shared.user_files == {str(tmp_path / "mine.py")}
