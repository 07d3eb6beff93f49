from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from sagann.cli.toml_file import format_toml, read_toml
from sagann.errors import InputError

text = st.text(st.characters(exclude_categories=["Cs"]))
scalars = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | text
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3), max_leaves=4
)
names = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)


@given(st.dictionaries(names, st.dictionaries(names, values, max_size=3), max_size=3))
def test_what_is_written_is_what_is_read(tables: dict[str, dict[str, Any]]) -> None:
    assert tomllib.loads(format_toml(tables)) == tables


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "bom.toml").write_text("\ufeff[data]\ndata = 'demo'\n", encoding="utf-8")
    assert read_toml(tmp_path / "bom.toml") == {"data": {"data": "demo"}}


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot be read: No such file or directory \(in .*nothing\.toml\)"):
        read_toml(tmp_path / "nothing.toml")


@pytest.mark.parametrize(
    "content",
    [b"[model", b"a = ", b"\xff\xfe\x00", b"a = 1\na = 2", b"x = " + b"[" * 100_000, b"x = 2026-13-45"],
)
def test_what_is_no_toml(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"is not TOML: .*\(in .*bad\.toml\)"):
        read_toml(path)
