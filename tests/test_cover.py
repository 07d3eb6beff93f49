"""Covers of few cases."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from itertools import combinations, product
from pathlib import Path

from hypothesis import given, strategies as st

from tests.cover import cover

AXES = ("model", "order", "policy", "dtype")


def cross_product(*sizes: int) -> list[dict[str, int]]:
    return [dict(zip(AXES, values, strict=False)) for values in product(*map(range, sizes))]


@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4), strength=st.integers(1, 3))
def test_every_combination_is_there(sizes: list[int], strength: int) -> None:
    cases = cross_product(*sizes)
    taken = [cases[position] for position in cover(cases, strength)]
    for axes in combinations(AXES[: len(sizes)], min(strength, len(sizes))):
        assert {tuple(case[axis] for axis in axes) for case in taken} == {
            tuple(case[axis] for axis in axes) for case in cases
        }


_TESTS = """
import pytest

values = pytest.mark.parametrize

@pytest.mark.cover(2)
@values("a", range(3))
@values("b", range(3))
@values("c", range(3))
def test_pairs(a, b, c): pass

@values("a", range(3))
@values("b", range(3))
def test_values(a, b): pass

@pytest.mark.cover(3)
@values("a", range(2))
@values("b", range(2))
@values("c", range(2))
def test_all(a, b, c): pass

@values(("a", "b", "c"), [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1)])
def test_stated_together(a, b, c): pass

@pytest.mark.thorough
def test_long(): pass

def test_plain(): pass
"""


def test_what_is_outside_of_a_cover_is_thorough(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "from tests.cover import mark_the_rest\n\ndef pytest_collection_modifyitems(items):\n    mark_the_rest(items)\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    cover: strength\n    thorough: left out\n")
    (tmp_path / "test_some.py").write_text(_TESTS)
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-m", "not thorough"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert listed.returncode == 0, listed.stdout + listed.stderr
    kept = Counter(re.findall(r"::(\w+)", listed.stdout))
    assert 9 <= kept.pop("test_pairs") <= 12
    assert kept == {"test_values": 3, "test_all": 8, "test_stated_together": 8, "test_plain": 1}
