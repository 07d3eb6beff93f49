"""docs/minibatches.md runs as printed."""

import doctest
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.slow
def test_the_page_runs() -> None:
    failed, attempted = doctest.testfile(str(DOCS / "minibatches.md"), module_relative=False)
    assert failed == 0
    assert attempted >= 20
