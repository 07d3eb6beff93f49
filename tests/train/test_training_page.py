"""docs/training.md, docs/memory.md and docs/pyg.md run as printed."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("page", "at_least"), [("training.md", 100), ("memory.md", 15), ("pyg.md", 11)])
def test_the_page_runs_as_printed(page, at_least, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failed, attempted = doctest.testfile(str(DOCS / page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert failed == 0
    assert attempted >= at_least
