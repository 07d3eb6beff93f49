"""The quick starts of README and docs/ run as printed: every command and Python block, in order, in one folder."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

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
    # Commands run in this process: tests/cli/test_process.py has them in processes of their own.
    from sagann.cli.main import main

    monkeypatch.chdir(tmp_path)
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
            program = [sys.executable, "-c", text]
            ended = subprocess.run(program, capture_output=True, text=True, timeout=240, check=False)
            assert ended.returncode == 0, f"{text}\n{ended.stdout}\n{ended.stderr}"
            done += 1
    assert done >= 10
    assert Path("runs/friends/metrics.json").exists()
    assert len(Path("predictions.csv").read_text().splitlines()) == 501
    assert Path("embeddings.npy").exists()
