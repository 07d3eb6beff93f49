from __future__ import annotations

from dataclasses import fields

import pytest

from sagann.ranges import RANGES, Range, require_shape
from sagann.storage.manifest import Manifest


@pytest.mark.parametrize("value", [0, 8, True, 1.0, "1", None])
def test_nothing_else_is_in_a_range(value: object) -> None:
    assert value not in Range(1, 7)


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (1, 1000, "from 1 to 1000"),
        (0, 2**31 - 1, "from 0 to 2^31 - 1"),
        (0, 2**40, "from 0 to 2^40"),
    ],
)
def test_ranges_in_words(low: int, high: int, text: str) -> None:
    assert str(Range(low, high)) == f"an integer {text}"


def test_every_integer_of_a_manifest_has_a_range() -> None:
    assert all(key.name in RANGES for key in fields(Manifest) if key.type == "int")


@pytest.mark.parametrize(
    ("shape", "problem"),
    [
        ((10**18, 0), "size 1000000000000000000 in a shape, expected an integer from 0"),
        ((True, 0), "size True in a shape"),
        ((2**40, 2**40, 0), "bytes, beyond 64 bits"),
        ((0,) * 33, "33 dimensions, expected at most 32"),
    ],
)
def test_shapes_that_no_array_has(shape: tuple[int, ...], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        require_shape(shape, 4)
