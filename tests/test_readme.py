"""The quick starts of README and docs/ run as printed: every command and Python block, in order, in one folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
