from __future__ import annotations

import gc
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import sagann

# A module that is first imported while a test replaces load_graph would keep the replacement.
import sagann.cli.prepare
from sagann.cli.main import app
from sagann.cli.run_settings import chosen_settings
from sagann.config import SETTINGS
from sagann.options import ADVANCED
from tests.cli.conftest import Invoke


def commands(command: Any, *before: str) -> Iterator[list[str]]:
    """The words of every command and of every group of commands."""
    for name, each in getattr(command, "commands", {}).items():
        yield [*before, name]
        yield from commands(each, *before, name)


COMMANDS = [*commands(typer.main.get_command(app))]


def test_version(invoke: Invoke) -> None:
    assert invoke("--version").out == f"sagann {sagann.__version__}\n"


def test_the_garbage_collector_of_a_process_that_calls_main_stays_as_it_is(invoke: Invoke) -> None:
    num_frozen = gc.get_freeze_count()
    assert invoke("data", "info", "demo").code == 0
    assert gc.isenabled()
    # Some that are frozen are freed.
    assert gc.get_freeze_count() <= num_frozen


@pytest.mark.parametrize("command", [[], *COMMANDS], ids=" ".join)
def test_every_command_has_help(invoke: Invoke, command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    outcome = invoke(*command, "--help")
    assert outcome.code == 0
    assert "Usage: sagann" in outcome.out
    assert outcome.err == ""
    assert "bool" not in outcome.out.lower(), "switches have no types"
    # Brackets of a text that were taken for markup leave gaps behind.
    assert " .\n" not in outcome.out
    assert " . " not in outcome.out
    if command not in ([], ["data"], ["data", "generate"]):
        assert "--debug" in outcome.out


def test_help_shows_defaults_and_groups(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = invoke("train", "--help").out
    assert f"{SETTINGS['hidden'].help} [default: 128]" in " ".join(text.replace("│", " ").split())
    assert "[default: runs/DATA-MODEL, numbered]" in text
    for group in ("Data", "Model", "Training", "Devices and memory", "Mini-batches", "Evaluation", "Options"):
        assert f"─ {group} ─" in text


def test_help_leaves_advanced_options_to_help_all(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    texts = [invoke("train", name).out for name in ("--help", "--help-all")]
    usual, every = ({*re.findall(r"│ (--[\w-]+)", text)} for text in texts)
    assert every - usual == {option.flag for option in SETTINGS.values() if ADVANCED in option.marks}
    assert len(usual) < 50
    assert texts[0].count("╭") == 7
    assert "--help-all" in usual


def test_all_commands_have_at_most_120_options() -> None:
    def options(command: Any) -> set[str]:
        own = {each.opts[0] for each in command.params if each.opts[0].startswith("--")}
        return own.union(*map(options, getattr(command, "commands", {}).values()))

    assert len(options(typer.main.get_command(app))) <= 120


def test_data_and_runs_may_stand_without_the_name_of_their_option(
    invoke: Invoke, blocks: Path, trained: Path, tmp_path: Path
) -> None:
    short = ("--hidden", "4", "--epochs", "1", "--out", tmp_path / "run")
    assert invoke("train", blocks, *short).code == 0
    assert invoke("plan", blocks, "--hidden", "4").code == 0
    assert invoke("evaluate", trained).out == invoke("evaluate", "--run", trained).out
    assert invoke("predict", trained, "--out", tmp_path / "p.csv").code == 0
    assert invoke("embed", trained, "--out", tmp_path / "e.npy").code == 0


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
    ("mistake", "said", "mended"),
    [
        # Options.
        ("train demo --learning_rate 0.1", "Possible options: --lr)", "train demo --lr 0.1"),
        ("train demo --bs 32 --sample 5,5", "options: --batch-size)", "train demo --batch-size 32 --sample 5,5"),
        ("train demo --hidden_dim 64", "options: --hidden)", "train demo --hidden 64"),
        ("train demo --fanout 5,5", "options: --sample)", "train demo --sample 5,5"),
        ("train demo --gpu", "options: --device)", "train demo --device cuda"),
        ("train demo --momentum 0.9", "options: --optimizer-option)", "train demo --optimizer SGD --optimizer-option momentum=0.9"),
        ("train demo --batch-norm", "options: --norm)", "train demo --norm batch"),
        ("train demo --teleport 0.2", "options: --model-option)", "train demo --model appnp --model-option teleport=0.2"),
        ("train demo --directed", "options: --no-undirected)", "train demo --no-undirected"),
        ("train demo --train-ratio 0.6", "options: --split)", "train demo --split random:0.6,0.2"),
        ("train demo --deterministic false", "or --no-", "train demo --no-deterministic"),
        # Values.
        ("train demo --loss ce", "--loss) hint: Did you mean 'cross_entropy'?", "train demo --loss cross_entropy"),
        ("train demo --monitor val_acc", "Did you mean 'val/accuracy'?", "train demo --monitor val/accuracy"),
        ("train demo --model GraphSAGE", "--model) hint: Did you mean 'sage'?", "train demo --model sage"),
        ("train demo --lr=-1", "(in --lr) hint: Set lr to a finite number above 0", "train demo --lr 0.1"),
        ("train demo --memory 300", "--memory) hint: Write a number and a unit, as 300MiB.", "train demo --memory 300MiB"),
        ("train demo --hot 10%", "Leave hot out, or set sample (--sample 25,10)", "train demo --hot 10% --sample 25,10"),
        ("train demo --sample '5 5'", "a comma-separated list", "train demo --sample 5,5"),
        # Other commands.
        ("fit demo", "Did you mean 'train'?", "train demo"),
        ("info demo", "Did you mean 'data info'?", "data info demo"),
        ("data info --data demo", "PATH|NAME without a name", "data info demo"),
        ("data import edges.csv made --y labels.csv", "options: --labels)", "data import edges.csv made --labels labels.csv"),
        ("data import edges.csv made --memory 1KiB", "--memory) hint: Set memory_bytes to", "data import edges.csv made --memory 256MiB"),
        ("test RUN", "Did you mean 'evaluate'?", "evaluate RUN"),
        ("evaluate RUN --split test", "or leave --split out", "evaluate RUN"),
        ("predict RUN -o p.csv", "options: --out)", "predict RUN --out p.csv"),
    ],
)  # fmt: skip
def test_what_the_hint_of_a_mistake_says_is_accepted(
    invoke: Invoke,
    mistake: str,
    said: str,
    mended: str,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Nothing is trained: the settings are made and checked.
    monkeypatch.setattr(
        "sagann.cli.train_run.train_run", lambda given, **_: chosen_settings(given, None, of_run=False) and 0
    )
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    Path("edges.csv").write_text("from,to\n0,1\n")
    Path("labels.csv").write_text("0\n1\n")
    arguments = [shlex.split(line.replace("RUN", str(trained))) for line in (mistake, mended)]
    outcome = invoke(*arguments[0])
    assert outcome.code == 2
    assert said in " ".join(outcome.err.split()), outcome.err
    assert "Config" not in outcome.err.partition("hint:")[0]
    followed = invoke(*arguments[1])
    assert followed.code == 0, followed.err


def test_a_value_of_a_file_is_refused_by_its_key(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[train]\nlr = -1.0\n")
    assert "run.toml, train.lr)\n" in invoke("train", "demo", "--config", file).err
    file.write_text("[train]\nhidden = 64\n")
    assert "hint: Put it under [model]." in invoke("train", "demo", "--config", file).err


def test_a_name_from_elsewhere_is_offered_only_where_the_command_has_it(invoke: Invoke) -> None:
    assert "--patience" not in invoke("predict", "--early-stopping", "10").err


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("NUMBA_NUM_THREADS", "0", "threads is out of range: 0, expected an integer from 1 to 8192"),
        ("NUMBA_NUM_THREADS", "-1", "threads is out of range: -1"),
        ("RANK", "first", "a variable of the environment is no number: 'first', expected digits"),
        ("WORLD_SIZE", "-2", "a variable of the environment is no number: '-2'"),
    ],
)
def test_numbers_of_the_environment_are_checked(
    invoke: Invoke, name: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each, given in {"RANK": "0", "WORLD_SIZE": "2", name: value}.items():
        monkeypatch.setenv(each, given)
    outcome = invoke("train", "demo", "--epochs", "1")
    assert outcome.code == 2
    assert outcome.err.startswith(f"Error: {message}")
    assert f"(in the environment's {name})" in outcome.err
    assert outcome.err.count("hint: ") == 1


def test_an_unforeseen_error_exits_1(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("sagann.storage.load_graph", fail)
    outcome = invoke("data", "info", "demo")
    assert outcome.code == 1
    assert outcome.err.startswith(
        "Error: a fault of sagann, not of yours: ZeroDivisionError: division by zero (in sagann/cli/data.py, "
    )
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("arguments", [["--debug", "data", "info", "nix"], ["data", "info", "nix", "--debug"]])
def test_debug_shows_the_traceback(invoke: Invoke, arguments: list[str]) -> None:
    outcome = invoke(*arguments)
    assert outcome.code == 2
    assert "Traceback (most recent call last)" in outcome.err
    assert outcome.err.rstrip().splitlines()[-2].startswith("Error: graph not found")
