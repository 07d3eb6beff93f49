"""JSON and TOML that others have written are parsed, or a ValueError says why not: within the same bounds in every version of Python."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sagann.documents import MOST_LEVELS, MOST_TOML_BYTES, parse_json, parse_toml, require_levels


@pytest.mark.parametrize("text", ["NaN", "[-Infinity]", '{"a": 1e999}', "-1e400"])
def test_numbers_that_are_not_finite_are_no_json(text: str) -> None:
    with pytest.raises(ValueError, match="is no finite number"):
        parse_json(text.encode())
    assert parse_json(text, is_finite=False) is not None
    assert parse_json(b"[1, 2.5, 0.1, -0.0, 1e-320]") == [1, 2.5, 0.1, -0.0, 1e-320]


def nested(levels: int, begin: str, end: str) -> str:
    return begin * levels + "1" + end * levels


@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")])
def test_json_is_read_to_so_many_levels(begin: str, end: str) -> None:
    most = MOST_LEVELS // begin.replace("{", "[").count("[")
    text = nested(most, begin, end)
    assert parse_json(text) == json.loads(text)
    for levels in (most + 1, 3 * most, 100_000):
        with pytest.raises(ValueError, match=r"^it is nested too deeply: more than 100 levels"):
            parse_json(nested(levels, begin, end))


@pytest.mark.parametrize(
    ("begin", "end"), [("[", "]"), ("{a = ", "}"), ("[{'x y'.b = ", "}]")], ids=["lists", "tables", "both"]
)
def test_toml_is_read_to_so_many_levels(begin: str, end: str) -> None:
    found: Any = parse_toml("a = " + nested(30, begin, end))
    assert found
    for levels in (MOST_LEVELS, 3 * MOST_LEVELS, 100_000):
        with pytest.raises(ValueError, match=r"^it is nested too deeply: more than 100 levels"):
            parse_toml("a = " + nested(levels, begin, end))


PARTS = ["a", "7-_", '"x.y"', "'.'", '""']


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("dot", [".", " \t. "])
@pytest.mark.parametrize("form", ["{} = 1", "[{}]", "[[{}]]", "x = {{{} = 1}}", "a = 1\n  b.{} = 1"])
def test_a_key_of_many_parts_is_refused_before_it_is_parsed(part: str, dot: str, form: str) -> None:
    with pytest.raises(ValueError, match=r"line [12] has a key of more than 100 parts"):
        parse_toml(form.format(dot.join([part] * 100_000)))


def test_keys_of_a_few_parts_and_long_lists_are_read() -> None:
    numbers = [0.25] * 1000
    text = f"a.b = {numbers}\n[c.{'.'.join('d' * 20)}]\nx = '{'.'.join('e' * 50)}'"
    assert parse_toml(text)["a"] == {"b": numbers}


@pytest.mark.parametrize(
    "text", ["a" * 10**6, "a " * 10**6, "'" * 10**6, "a.'" * 10**6, "\"'a" * 10**6, ("a" * 10**4 + ".") * 90]
)
def test_long_keys_are_looked_for_in_one_pass(text: str) -> None:
    # A look that went back would take hours.
    with pytest.raises(ValueError, match=r"at line 1, column|at end of document"):
        parse_toml(text)


def test_a_long_key_is_not_shown_whole() -> None:
    key = "x" * 10_000
    with pytest.raises(ValueError, match=r"^.{,100}\.\.\..*\(at line 2, column \d+\)$") as caught:
        parse_toml(f"[{key}]\n[{key}]")
    assert len(str(caught.value)) < 250


def test_toml_of_many_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 16777216 are read"):
        parse_toml("#" * (MOST_TOML_BYTES + 1))


def test_levels_are_counted() -> None:
    value: Any = 1
    for levels in range(1, 5):
        value = {"a": value, "b": 2} if levels % 2 else [value, "x"]
        require_levels(value, levels)
        with pytest.raises(ValueError, match=f"more than {levels - 1} levels"):
            require_levels(value, levels - 1)
