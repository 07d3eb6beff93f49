"""Errors, and texts of sizes, ranges and values."""

from __future__ import annotations

import pickle
import tomllib
from typing import Any

import pytest
from hypothesis import given, strategies as st

from sagann.byte_size import format_bytes, parse_bytes
from sagann.errors import (
    CheckpointError,
    DatasetError,
    InputError,
    LayerError,
    MissingDependencyError,
    SagannError,
    first_line,
    in_one_line,
    shown,
)
from sagann.ranges import Range
from sagann.toml_text import format_toml, toml_value


@pytest.mark.parametrize("kind", [SagannError, CheckpointError])
def test_an_error_is_a_message_and_a_hint(kind: type[SagannError]) -> None:
    error = kind("id out of range: 7, limit 5 (in edge 3)", hint="Renumber.")
    assert str(error) == "id out of range: 7, limit 5 (in edge 3). Renumber."
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.message, copy.hint) == (kind, error.message, "Renumber.")


def test_input_errors_are_value_errors_and_layer_errors_type_errors() -> None:
    assert issubclass(DatasetError, InputError)
    assert issubclass(InputError, ValueError)
    assert issubclass(LayerError, TypeError)


def test_a_missing_package_names_its_extra() -> None:
    error = MissingDependencyError("tensorboard", extra="tensorboard", feature="--tensorboard")
    assert "pip install 'sagann[tensorboard]'" in str(error)
    assert isinstance(error, ImportError)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_the_first_line_of_an_error() -> None:
    assert first_line(ValueError("\n  \nwrong\nmore")) == "wrong"
    assert in_one_line(ValueError("\nwrong\nmore")) == "ValueError: wrong"
    assert first_line(MemoryError()) == in_one_line(MemoryError(" \n")) == "MemoryError"


def test_values_are_shown_in_few_characters() -> None:
    assert shown([1, "a"]) == "[1, 'a']"
    assert shown("a" * 100, 20) == "'" + "a" * 16 + "..."
    assert shown([10**10_000]) == "a value with an integer of thousands of digits"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1048576", 2**20),
        ("1000632 bytes", 1000632),
        ("256MiB", 2**28),
        ("1 gib", 2**30),
        ("2GB", 2 * 10**9),
        (" 0.5 KiB ", 512),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text, where="--memory") == size


@pytest.mark.parametrize("text", ["", "-1", "1e9", "1XB", "1 2", "9" * 5000])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(InputError, match=r"size is not understood: .* \(in --memory\)\. Write a number and a unit"):
        parse_bytes(text, where="--memory")


@pytest.mark.parametrize(("text", "hint"), [("1048575", "1048575MiB"), ("1.5", "1.5MiB"), ("512 m", "512MiB")])
def test_a_small_number_without_a_unit_is_refused_and_the_size_that_is_offered_is_not(text: str, hint: str) -> None:
    with pytest.raises(InputError, match=rf"size is not understood: .*\. Write a number and a unit, as {hint}\.$"):
        parse_bytes(text, where="--memory")
    assert parse_bytes(hint, where="--memory") >= 2**20


@pytest.mark.parametrize("text", ["9" * 18 + "TiB"])
def test_sizes_beyond_64_bits(text: str) -> None:
    with pytest.raises(InputError, match=r"size is out of range: .* in bytes, expected an integer from 0 to 2\^63"):
        parse_bytes(text, where="--memory")


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 * 2**40, "5.0 TiB"), (2**60, "1048576.0 TiB")],
)
def test_bytes_in_words(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize("value", [0, 8, True, 1.0, "1", None])
def test_nothing_else_is_in_a_range(value: object) -> None:
    assert value not in Range(1, 7)


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(1, 1000, "from 1 to 1000"), (0, 2**31 - 1, "from 0 to 2^31 - 1"), (0, 2**40, "from 0 to 2^40")],
)
def test_ranges_in_words(low: int, high: int, text: str) -> None:
    assert str(Range(low, high)) == f"an integer {text}"


text = st.text(st.characters(exclude_categories=["Cs"]))
scalars = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | text
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3), max_leaves=4
)
names = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)


@given(st.dictionaries(names, st.dictionaries(names, values, max_size=3), max_size=3))
def test_what_is_written_is_what_is_read(tables: dict[str, dict[str, Any]]) -> None:
    assert tomllib.loads(format_toml(tables)) == tables


def test_other_values_are_refused() -> None:
    with pytest.raises(TypeError, match="set has no form in TOML"):
        toml_value({"a": {1}})
