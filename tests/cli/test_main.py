from __future__ import annotations

import re

import pytest

import sagann

# A module that is first imported while a test replaces load_graph would keep the replacement.
import sagann.cli.prepare
from sagann.cli.settings import SETTINGS
from tests.cli.conftest import Invoke

COMMANDS = (
    ["train"],
    ["evaluate"],
    ["predict"],
    ["embed"],
    ["doctor"],
    ["machine"],
    ["data"],
    ["data", "import"],
    ["data", "info"],
    ["data", "check"],
    ["data", "generate"],
    ["data", "generate", "rmat"],
    ["data", "generate", "sbm"],
)


def test_version(invoke: Invoke) -> None:
    assert invoke("--version").out == f"sagann {sagann.__version__}\n"


@pytest.mark.parametrize("command", [[], *COMMANDS], ids=" ".join)
def test_every_command_has_help(invoke: Invoke, command: list[str]) -> None:
    outcome = invoke(*command, "--help")
    assert outcome.code == 0
    assert "Usage: sagann" in outcome.out
    assert outcome.err == ""
    # Brackets of a text that were taken for markup leave gaps behind.
    assert " .\n" not in outcome.out
    assert " . " not in outcome.out
    if command not in ([], ["data"], ["data", "generate"]):
        assert "--debug" in outcome.out


def test_help_shows_defaults_and_groups(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = invoke("train", "--help").out
    hidden = next(setting for setting in SETTINGS if setting.name == "hidden")
    assert f"{hidden.help} [default: 128]" in " ".join(text.replace("│", " ").split())
    assert "[default: runs/DATA-MODEL, numbered]" in text
    for group in ("Data", "Model", "Optimisation", "Evaluation and early stopping", "Run folder"):
        assert f"─ {group} ─" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "No such command 'trian'"),
        (["train", "--epohcs", "3"], "No such option"),
        (["train", "--hidden"], "requires an argument"),
        (["predict", "--run", "x"], "Missing option '--out'"),
        (["data", "info"], "Missing argument"),
        (["data", "generate", "rmat", "x", "--vertices", "-1", "--edges", "2"], "--vertices"),
        (["data", "generate", "rmat", "x", "--vertices", "many", "--edges", "2"], "--vertices"),
        (["doctor", "please"], "unexpected extra argument"),
    ],
)
def test_wrong_use_exits_2(invoke: Invoke, arguments: list[str], message: str) -> None:
    outcome = invoke(*arguments)
    assert outcome.code == 2
    assert message in outcome.err
    assert "Traceback" not in outcome.err
    assert outcome.out == ""


def test_an_unforeseen_error_exits_1(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("sagann.storage.load_graph", fail)
    outcome = invoke("data", "info", "demo")
    assert outcome.code == 1
    assert outcome.err.startswith("Error: a fault of sagann, not of yours: ZeroDivisionError: division by zero\n")
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("arguments", [["--debug", "data", "info", "nix"], ["data", "info", "nix", "--debug"]])
def test_debug_shows_the_traceback(invoke: Invoke, arguments: list[str]) -> None:
    outcome = invoke(*arguments)
    assert outcome.code == 2
    assert "Traceback (most recent call last)" in outcome.err
    assert outcome.err.rstrip().splitlines()[-3].startswith("Error: graph not found")


def test_interrupt_exits_130(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sagann.storage.load_graph", interrupt)
    outcome = invoke("data", "info", "demo")
    assert outcome.code == 130
    assert "Traceback" not in outcome.err


def test_a_reader_that_goes_away_is_no_error(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def close(*_: object, **__: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("sagann.storage.load_graph", close)
    assert invoke("data", "info", "demo").code == 0


def test_no_color_is_respected(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where colours are asked for, as on a terminal."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    colour = re.compile("\x1b\\[[0-9;]*3[0-9]")
    monkeypatch.setattr("sagann.report.probes.run_probes", list)
    assert colour.search(invoke("doctor").out)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colour.search(invoke("doctor").out)
