"""Values of JSON are of the expected type, or the error says which type was expected."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from sagann.storage.json_fields import as_flag, as_integer, as_list, as_mapping, as_text, as_texts


@pytest.mark.parametrize(
    ("read", "good", "bad", "expected"),
    [
        (as_text, "a", 1, "text, found 1"),
        (
            partial(as_integer, name="num_classes"),
            2**48 - 1,
            2**48,
            r"an integer from 0 to 2\^48 - 1 for num_classes",
        ),
        (
            partial(as_integer, name="drawn_negatives"),
            1,
            0,
            r"an integer from 1 to 65536 for drawn_negatives, found 0",
        ),
        (partial(as_integer, name="num_edges"), 0, True, "an integer .* found True"),
        (as_flag, False, 0, "true or false"),
        (as_list, [1], {}, "a list"),
        (as_mapping, {}, [], "an object"),
    ],
)
def test_types_are_strict(read: Callable[[Any], Any], good: Any, bad: Any, expected: str) -> None:
    assert read(good) == good
    with pytest.raises(TypeError, match=f"expected {expected}"):
        read(bad)


def test_a_list_of_texts_holds_nothing_else() -> None:
    assert as_texts(["a", "b"]) == ("a", "b")
    with pytest.raises(TypeError, match="expected text, found 1"):
        as_texts(["a", 1])
    with pytest.raises(TypeError, match=r"expected text that can be written in UTF-8, found '\\ud800'"):
        as_texts(["a", "\ud800"])
