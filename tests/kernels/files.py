"""What a folder holds, and since when."""

from __future__ import annotations

from pathlib import Path


def times_by_file(folder: Path) -> dict[Path, int]:
    """When each file below a folder was written, in nanoseconds."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
