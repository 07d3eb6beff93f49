from __future__ import annotations

from typing import Any

import pytest

from sagann.cli.setting import Kind, Setting
from sagann.errors import InputError


def setting(kind: Kind, **fields: Any) -> Setting:
    return Setting(section="train", name="value", kind=kind, help="", panel="", **fields)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [("integer", "-3", -3), ("number", "1e-3", 0.001), ("number", "4", 4.0), ("text", "none", "none")],
)
def test_reads_text(kind: Kind, text: str, value: object) -> None:
    found = setting(kind).from_text(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("kind", "text"), [("integer", "1.5"), ("integer", ""), ("number", "x"), ("number", "1,5")]
)
def test_refuses_text(kind: Kind, text: str) -> None:
    with pytest.raises(InputError, match=r"value is not an? (integer|number): '.*' \(in --value\)"):
        setting(kind).from_text(text)


def test_an_integer_of_thousands_of_digits_is_refused() -> None:
    with pytest.raises(InputError, match="value is not an integer"):
        setting("integer").from_text("9" * 10_000)
    with pytest.raises(InputError, match=r"value is too large: an integer of more than .* at most 7"):
        setting("integer", largest=7).from_toml(10**10_000, where="f.toml")
    with pytest.raises(InputError, match="value is not a number"):
        setting("number").from_toml(10**10_000, where="f.toml")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("integer", 1.0),
        ("integer", True),
        ("integer", "1"),
        ("number", True),
        ("number", "1"),
        ("number", [1.0]),
        ("flag", 1),
        ("flag", "true"),
        ("text", 1),
        ("text", {}),
        ("options", [1]),
        ("options", "a=1"),
    ],
)
def test_refuses_toml_of_another_type(kind: Kind, value: object) -> None:
    with pytest.raises(InputError, match=r"value is not .*\(in f\.toml\)\. Write train\.value as "):
        setting(kind).from_toml(value, where="f.toml")


def test_none_unsets_what_is_optional() -> None:
    assert setting("integer", optional=True).from_text("none") is None
    assert setting("integer", optional=True).from_toml("none", where="f") is None
    with pytest.raises(InputError, match="not an integer"):
        setting("integer").from_text("none")


def test_options_are_toml_values_or_bare_words() -> None:
    options = setting("options").from_texts(["betas=[0.9, 0.99]", "foreach=false", "mode=min", "x=1\ny=2", "e="])
    assert options == {"betas": [0.9, 0.99], "foreach": False, "mode": "min", "x": "1\ny=2", "e": ""}


@pytest.mark.parametrize("text", ["betas", "=1"])
def test_options_without_a_key_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="value is not KEY=VALUE"):
        setting("options").from_texts([text])


def test_deeply_nested_option_is_a_word() -> None:
    text = "[" * 5000
    assert setting("options").from_texts([f"a={text}"]) == {"a": text}
