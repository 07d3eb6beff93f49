from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

import pytest

from sagann.cli.run_settings import ENGINES, DataConfig, RunSettings
from sagann.cli.settings import SETTINGS, Kind, Setting
from sagann.errors import InputError
from sagann.nn import MODELS, ModelConfig
from sagann.nn.zoo import ENCODERS
from sagann.ranges import Range
from sagann.train import DECAY_POLICIES, TrainConfig

BY_NAME = {setting.name: setting for setting in SETTINGS}


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(SETTINGS)
    assert len({setting.option for setting in SETTINGS}) == len(SETTINGS)


OF_RUN = {"engine", "workers", "worker_timeout", "balance"}
"Fields of RunSettings itself; in a file they stand in the section [train]."


@pytest.mark.parametrize(
    ("section", "config"), [("data", DataConfig), ("model", ModelConfig), ("train", TrainConfig)]
)
def test_every_field_is_a_setting(section: str, config: type) -> None:
    """A field of a type that the command line cannot read, or without a text, would be left out."""
    found = {setting.name for setting in SETTINGS if setting.section == section}
    assert found - OF_RUN == {field.name for field in fields(config)}


@pytest.mark.parametrize("config", [ModelConfig, TrainConfig, RunSettings])
def test_defaults_are_those_of_the_configurations(config: type) -> None:
    for field in fields(config):
        if field.default is MISSING:
            continue
        setting = BY_NAME[field.name]
        expected = {True: "yes", False: "no"}[field.default] if setting.kind == "flag" else str(field.default)
        assert setting.default == expected.replace("None", "none"), field.name
        assert setting.optional == (field.default is None), field.name


def test_help_is_the_text_of_a_field_without_markup() -> None:
    assert BY_NAME["data"].help == "A dataset folder, an .npz file, or the name of an embedded graph (demo)."
    for setting in SETTINGS:
        assert setting.help, setting.name
        assert "`" not in setting.help, setting.name
        assert "None" not in setting.help, setting.name
        assert "  " not in setting.help, setting.name


def test_choices_in_the_help_are_those_there_are() -> None:
    assert BY_NAME["encoder"].metavar == "|".join(ENCODERS)
    assert BY_NAME["decay"].metavar == "|".join(DECAY_POLICIES)
    assert BY_NAME["engine"].metavar == "|".join(ENGINES)
    for name in MODELS:
        assert name in BY_NAME["model"].help


def setting(kind: Kind, **fields: Any) -> Setting:
    return Setting(section="train", name="value", kind=kind, help="", panel="", **fields)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("integer", "-3", -3),
        ("number", "1e-3", 0.001),
        ("number", "4", 4.0),
        ("text", "none", "none"),
        ("integers", "25,-1", [25, -1]),
        ("integers", " 7", [7]),
    ],
)
def test_reads_text(kind: Kind, text: str, value: object) -> None:
    found = setting(kind).from_text(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("integer", "1.5"),
        ("integer", ""),
        ("number", "x"),
        ("number", "1,5"),
        ("integers", ""),
        ("integers", "25,"),
        ("integers", "[25, 10]"),
        ("integers", "25;10"),
    ],
)
def test_refuses_text(kind: Kind, text: str) -> None:
    with pytest.raises(
        InputError,
        match=r"value is not an? (integer|number|list of integers with commas between them): '.*' \(in --value\)",
    ):
        setting(kind).from_text(text)


def test_an_integer_of_thousands_of_digits_is_refused() -> None:
    with pytest.raises(InputError, match="value is not an integer"):
        setting("integer").from_text("9" * 10_000)
    with pytest.raises(
        InputError,
        match=r"value is out of range: a value with an integer of thousands of digits, expected an integer from 1 to 7",
    ):
        setting("integer", range=Range(1, 7)).from_toml(10**10_000, where="f.toml")
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
        ("integers", 25),
        ("integers", "25,10"),
        ("integers", [25, 10.0]),
        ("integers", [True]),
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
