"""Processes of accelerators, as the system lists them."""

from __future__ import annotations

from pathlib import Path


def is_running(pid: int) -> bool:
    """Whether a process has not ended; one that nobody has waited for has."""
    return _parent_of(Path(f"/proc/{pid}")) is not None


def spawned_by(parent: int) -> list[int]:
    """Processes that another one has started by spawning, and that still run."""
    return [
        int(folder.name)
        for folder in Path("/proc").glob("[0-9]*")
        if _parent_of(folder) == parent and b"spawn_main" in (folder / "cmdline").read_bytes()
    ]


def _parent_of(folder: Path) -> int | None:
    """The parent of a process that runs; None for one that has ended."""
    try:
        # The name of a program may have blanks and parentheses.
        state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return None
    return None if state == "Z" else int(parent)
