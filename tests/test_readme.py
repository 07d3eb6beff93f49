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
def test_quick_start_runs_as_printed(tmp_path: Path) -> None:
    commands = 0
    for language, filename, text in blocks():
        if filename:
            (tmp_path / filename).write_text(text)
            continue
        runs = [[sys.executable, "-c", text]]
        if language == "console":
            lines = [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]
            assert len(lines) == len(text.splitlines()), "a console block holds commands only"
            runs = [[sys.executable, "-m", *line.split()] for line in lines]
        for command in runs:
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
            commands += 1
    assert commands >= 10
    assert (tmp_path / "runs/friends/metrics.json").exists()
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 501
    assert (tmp_path / "embeddings.npy").exists()
