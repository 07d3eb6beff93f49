"""Where a page of results comes from: the command that wrote it, and the commit."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from bench.workers import ROOT


def command_line(module: str, options: Sequence[str]) -> str:
    """The command of a report: without the files that it wrote, and without the place of DGL's Python.

    Args:
        module: what was run.
        options: what it was given.
    """
    shown = ["python", "-m", module]
    rest = iter(part for option in options for part in option.split("=", 1))
    for option in rest:
        if option in ("--out", "--results", "--work"):
            next(rest)
            continue
        shown.append(option)
        if option == "--dgl":
            next(rest)
            shown.append("$DGL_PYTHON")
    return " ".join(shown)


def commit() -> str:
    """The checkout's commit, marked where there are changes besides results."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!bench/results")
    return (git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")) or "unknown"
