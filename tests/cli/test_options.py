from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
import typer

from sagann.cli import options
from sagann.cli.options import Given, Shared, command, option, switch
from sagann.options import Arguments, integers, options as of_run, options_of


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


def test_the_file_of_a_model_is_noted_by_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shared = Shared()
    shared.add_user_file("gcn")
    shared.add_user_file("mine.py:Net")
    assert shared.user_files == {str(tmp_path / "mine.py")}
