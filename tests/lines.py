"""Lines of Python by folder, and kilobytes of pages, beside their budgets in pyproject.toml: `make lines`."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_PAGES = ("README.md", "SECURITY.md", "CHANGELOG.md", "docs/*.md")


def lines_of(folder: Path) -> int:
    """Lines of all Python files below a folder."""
    return sum(file.read_bytes().count(b"\n") for file in folder.rglob("*.py"))


def sizes(root: Path, names: list[str]) -> dict[str, int]:
    """The size of each budget's name: of a folder its lines, of "pages" their kilobytes."""
    pages = sum(file.stat().st_size for pattern in _PAGES for file in root.glob(pattern))
    return {name: -(-pages // 1000) if name == "pages" else lines_of(root / name) for name in names}


def main(root: Path = _ROOT) -> int:
    """Print every size and its budget; 1 if one is above its budget."""
    budgets: dict[str, int] = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["lines"]
    found = sizes(root, list(budgets))
    for name, size in found.items():
        above = "" if size <= budgets[name] else f"  above its budget by {size - budgets[name]:,}"
        sys.stdout.write(f"{name:<24}{size:>8,} of {budgets[name]:>7,}{above}\n")
    return int(any(size > budgets[name] for name, size in found.items()))


if __name__ == "__main__":
    sys.exit(main())
