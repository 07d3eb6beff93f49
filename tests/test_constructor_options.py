"""Options of a constructor by name."""

from __future__ import annotations

from typing import Any

import pytest

from sagann.constructor_options import check_options, require_options
from sagann.errors import InputError


class Plain:
    def __init__(
        self, size, rate=0, *, name="x", flag=False, count: int = 0.5, other: list[int] | None = None
    ) -> None:  # type: ignore[no-untyped-def,assignment]
        pass


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rate": 0.5, "name": "y", "flag": True, "count": 3, "other": "anything"},
    ],
)
def test_options_that_fit_pass(options: dict[str, Any]) -> None:
    check_options(Plain, options, taken=["size"], where="here", what="options")
    require_options(options, where="here", what="options")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 3}, "options sets an argument that has an option of its own: 'size' \\(in here"),
        ({"rat": 3}, "Plain has no such option: 'rat' \\(in here\\). Did you mean 'rate'"),
        ({"rate": True}, "option rate of Plain is not a number: True"),
        ({"name": 3}, "option name of Plain is not a text: 3"),
        ({"flag": "yes"}, "option flag of Plain is not true or false: 'yes'"),
        ({"count": 0.5}, "option count of Plain is not an integer: 0.5"),
    ],
)
def test_others_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_options(Plain, options, taken=["size"], where="here", what="options")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([1], "options is no mapping of option to value: \\[1\\]"),
        ({"a": {1, 2}}, "options cannot be saved as JSON: 'a' is {1, 2}"),
    ],
)
def test_what_cannot_be_saved_is_refused(options: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        require_options(options, where="here", what="options")
