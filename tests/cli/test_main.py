from __future__ import annotations

import gc
import re
from pathlib import Path

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


def test_the_garbage_collector_of_a_process_that_calls_main_stays_as_it_is(invoke: Invoke) -> None:
    num_frozen = gc.get_freeze_count()
    assert invoke("data", "info", "demo").code == 0
    assert gc.isenabled()
    # Some that are frozen are freed.
    assert gc.get_freeze_count() <= num_frozen


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


@pytest.mark.parametrize("command", [[], *COMMANDS], ids=" ".join)
def test_help_shows_no_types_of_switches(
    invoke: Invoke, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert "bool" not in invoke(*command, "--help").out.lower()


def test_help_shows_defaults_and_groups(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = invoke("train", "--help").out
    hidden = next(setting for setting in SETTINGS if setting.name == "hidden")
    assert f"{hidden.help} [default: 128]" in " ".join(text.replace("│", " ").split())
    assert "[default: runs/DATA-MODEL, numbered]" in text
    for group in ("Data", "Model", "Optimisation", "Evaluation and early stopping", "Run folder"):
        assert f"─ {group} ─" in text


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (["trian"], "train"),
        (["train", "--epohcs", "3"], "--epochs"),
        (["train", "demo", "--model", "gnc"], "gcn"),
        (["train", "demo", "--encoder", "Linear"], "linear"),
        (["train", "demo", "--engine", "compield"], "compiled"),
        (["train", "demo", "--optimizer", "adam"], "Adam"),
        (["train", "dmeo"], "demo"),
        (["train", "near/blocsk"], "blocks"),
        (["train", "near/archive"], "archive.npz"),
        (["plan", "demo", "--show", "step"], "steps"),
        (["data", "import", "edges.csv", "out", "--format", "paquet"], "parquet"),
        (["data", "import", "edges.csv", "out", "--weight", "wieght"], "weight"),
        (["data", "reorder", "demo", "out", "--by", "mettis"], "metis"),
        (["data", "score", "demo", "--score", "vipp"], "vip"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else value,
)
def test_the_nearest_name_is_offered(
    invoke: Invoke, arguments: list[str], near: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("near/blocks").mkdir(parents=True)
    Path("near/archive.npz").write_text("")
    Path("edges.csv").write_text("from,to,weight\n0,1,2\n")
    outcome = invoke(*arguments)
    assert outcome.code == 2
    assert re.search(rf"Did you mean '?{near}'?\?|Possible options: {near}\b|Did you mean {near}", outcome.err), (
        outcome.err
    )


@pytest.mark.parametrize("name", ["gcn\x1b[2Jn", "g" * 10**5], ids=["codes", "long"])
def test_strange_names_are_neither_compared_nor_obeyed(invoke: Invoke, name: str) -> None:
    outcome = invoke("train", "demo", "--model", name)
    assert outcome.code == 2
    assert "Did you mean" not in outcome.err
    assert "\x1b" not in outcome.err
    assert len(outcome.err) < 2000


def test_data_and_runs_may_stand_without_the_name_of_their_option(
    invoke: Invoke, blocks: Path, trained: Path, tmp_path: Path
) -> None:
    short = ("--hidden", "4", "--epochs", "1", "--out", tmp_path / "run")
    assert invoke("train", blocks, *short).code == 0
    assert invoke("plan", blocks, "--hidden", "4").code == 0
    assert invoke("evaluate", trained).out == invoke("evaluate", "--run", trained).out
    assert invoke("predict", trained, "--out", tmp_path / "p.csv").code == 0
    assert invoke("embed", trained, "--out", tmp_path / "e.npy").code == 0
    twice = invoke("train", "demo", "--data", "demo")
    assert twice.code == 2
    assert "data is given twice: 'demo' and --data 'demo'" in twice.err
    assert invoke("train", "demo", "gcn").code == 2
    nothing = invoke("evaluate")
    assert nothing.code == 2
    assert "no run: neither a run folder nor --run" in nothing.err


def test_threads(invoke: Invoke, blocks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    asked: list[int] = []
    # The number of threads of the tests stays as it is.
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    common = ("--hidden", "4", "--epochs", "1")
    assert invoke("--threads", "3", "train", blocks, *common, "--out", tmp_path / "a").code == 0
    assert 3 in asked
    asked.clear()
    assert invoke("evaluate", tmp_path / "a", "--threads", "1").code == 0
    assert asked[0] == 1
    for wrong in ("0", "-1", "many", str(2**70)):
        refused = invoke("evaluate", tmp_path / "a", "--threads", wrong)
        assert refused.code == 2
        assert "--threads" in refused.err


def test_errors_have_colour_on_terminals_alone(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke("train", "nowhere").err.startswith("Error: graph not found")
    written: list[str] = []
    monkeypatch.setattr("typer.echo", lambda text, **_: written.append(text))
    monkeypatch.delenv("NO_COLOR", raising=False)
    invoke("train", "nowhere")
    monkeypatch.setenv("NO_COLOR", "1")
    invoke("train", "nowhere")
    coloured, plain = written
    assert coloured.startswith("\x1b[31m\x1b[1mError\x1b[0m: graph not found")
    assert plain.startswith("Error: graph not found")


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


@pytest.mark.parametrize(
    ("arguments", "offered"),
    [
        (["train", "--early-stopping", "10"], "--patience"),
        (["train", "--symmetrise"], "--undirected"),
        (["data", "import", "a", "b", "--undirected"], "--symmetrise"),
    ],
)
def test_an_option_of_another_name_is_offered(invoke: Invoke, arguments: list[str], offered: str) -> None:
    outcome = invoke(*arguments)
    assert outcome.code == 2
    assert outcome.err.splitlines()[-1].endswith(f"{offered}?") or f"(Possible options: {offered})" in outcome.err


def test_a_name_from_elsewhere_is_offered_only_where_the_command_has_it(invoke: Invoke) -> None:
    assert "--patience" not in invoke("predict", "--early-stopping", "10").err


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
