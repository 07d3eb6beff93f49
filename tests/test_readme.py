"""The README and pages of docs/ run as printed: every command and Python block, in order, and print what the page says."""

from __future__ import annotations

import doctest
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke
from tests.plan.machines import ROUND

ROOT = Path(__file__).parent.parent


def blocks() -> list[tuple[str, str, str]]:
    """(language, file name or '', text) of every fenced block below the README's heading, then of the page."""
    text = (ROOT / "README.md").read_text().partition("## Quick start")[2] + (
        ROOT / "docs/quickstart.md"
    ).read_text()
    return re.findall(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_quick_start_runs_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # All run in this process: tests/cli/test_process.py has commands in processes of their own. Measuring a machine takes half a minute.
    from sagann.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sagann.cli.plan_run.probe", lambda *_: ROUND)
    done = 0
    for language, filename, text in blocks():
        if filename:
            Path(filename).write_text(text)
        elif language == "console":
            for line in text.splitlines():
                assert line.startswith("$ sagann "), "a console block holds commands only"
                assert main(line.split()[2:]) == 0, (line, capsys.readouterr())
                done += 1
        else:
            exec(text, {"__name__": "__main__"})
            done += 1
    assert done >= 10
    assert Path("runs/friends/metrics.json").exists()
    assert len(Path("predictions.csv").read_text().splitlines()) == 501
    assert Path("embeddings.npy").exists()


DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("page", "at_least"), [("training.md", 100), ("memory.md", 15), ("pyg.md", 11)])
def test_the_page_runs_as_printed(page, at_least, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failed, attempted = doctest.testfile(str(DOCS / page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert failed == 0
    assert attempted >= at_least


SECONDS = (
    "Expected: ",
    "Of that, ",
    "Each stage by itself: ",
    "Metrics of the best weights, of epoch ",
    "In top: ",
)
"Begin lines that differ from run to run."


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """A command and the lines it is said to print; '...' stands for any lines."""

    command: str
    lines: tuple[str, ...]


def examples(text: str) -> list[Example]:
    found: list[Example] = []
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        command, *rest = re.split(r"^\$ ", block, flags=re.MULTILINE)
        assert command == ""
        for part in rest:
            first, *lines = part.rstrip().splitlines()
            found.append(Example(command=first, lines=tuple(lines)))
    return found


def prints(output: str, lines: tuple[str, ...]) -> bool:
    return re.fullmatch("".join(map(pattern, lines)), output) is not None


def pattern(line: str) -> str:
    if line == "...":
        return r"(?:.*\n)*?"
    begin = next((begin for begin in SECONDS if line.startswith(begin)), None)
    # Lines of the zoo's files move.
    exact = re.sub(r"(?<=layers\\.py:)\d+", r"\\d+", re.escape(line.rstrip()))
    return (exact + " *" if begin is None else re.escape(begin) + ".*") + r"\n"


def write_files(text: str, folder: Path) -> None:
    """Files that the page shows: "With `NAME`" and the next block."""
    for name, content in re.findall(r"[Ww]ith `([\w.]+)`\n\n```\w+\n(.*?)```", text, re.DOTALL):
        (folder / name).write_text(content)


def expect_on_a_round_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing on the pages depends on the machine but seconds; measuring it takes several, every time."""
    for name in (
        "sagann.runtime.forecasting.probe.probe",
        "sagann.cli.plan_run.probe",
        "sagann.runtime.forecasting.probe.probe",
    ):
        monkeypatch.setattr(name, lambda *_: ROUND)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["cli.md", pytest.param("how-it-works.md", marks=pytest.mark.thorough)])
def test_a_page(page: str, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DOCS / page).read_text()
    monkeypatch.chdir(tmp_path)
    expect_on_a_round_machine(monkeypatch)
    write_files(text, tmp_path)
    for example in examples(text):
        program, *arguments = shlex.split(example.command)
        assert program == "sagann"
        outcome = invoke(*arguments)
        expected = 2 if any(line.startswith("Error:") for line in example.lines) else 0
        assert outcome.code == expected, outcome.err
        assert prints(outcome.err if expected else outcome.out, example.lines), (example, outcome)


def test_the_page_shows_every_command() -> None:
    shown = {" ".join(example.command.split()[1:4]) for example in examples((DOCS / "cli.md").read_text())}
    for command in ("train", "evaluate", "predict", "embed", "doctor", "machine", "data import", "data info",
                    "data check", "data reorder", "data generate rmat", "data generate sbm"):  # fmt: skip
        assert any(words.startswith(command) for words in shown), command
