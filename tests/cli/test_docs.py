"""docs/cli.md and docs/how-it-works.md: every example runs, in order, and prints what the page says."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke
from tests.plan.machines import ROUND

DOCS = Path(__file__).parents[2] / "docs"
SECONDS = (
    "Estimated: ",
    "Of that, ",
    "Each stage alone: ",
    "Metrics of the best weights, of epoch ",
    "Resident memory",
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
