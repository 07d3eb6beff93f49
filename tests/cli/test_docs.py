"""docs/cli.md: every example runs, in order, and prints what the page says."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


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
    pattern = "".join(r"(?:.*\n)*?" if line == "..." else re.escape(line.rstrip()) + r" *\n" for line in lines)
    return re.fullmatch(pattern, output) is not None


def write_files(text: str, folder: Path) -> None:
    """Files that the page shows: "With `NAME`" and the next block."""
    for name, content in re.findall(r"[Ww]ith `([\w.]+)`\n\n```\w+\n(.*?)```", text, re.DOTALL):
        (folder / name).write_text(content)


@pytest.mark.slow
def test_the_page(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PAGE.read_text()
    monkeypatch.chdir(tmp_path)
    write_files(text, tmp_path)
    for example in examples(text):
        program, *arguments = shlex.split(example.command)
        assert program == "sagann"
        outcome = invoke(*arguments)
        expected = 2 if any(line.startswith("Error:") for line in example.lines) else 0
        assert outcome.code == expected, outcome.err
        assert prints(outcome.err if expected else outcome.out, example.lines), (example, outcome)


def test_the_page_shows_every_command() -> None:
    shown = {" ".join(example.command.split()[1:4]) for example in examples(PAGE.read_text())}
    for command in ("train", "evaluate", "predict", "embed", "doctor", "machine", "data import", "data info",
                    "data check", "data generate rmat", "data generate sbm"):  # fmt: skip
        assert any(words.startswith(command) for words in shown), command
