from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given, strategies as st

from sagann.toml_text import format_toml, toml_value

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
