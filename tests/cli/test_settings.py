from __future__ import annotations

from dataclasses import MISSING, fields

import pytest

from sagann.cli.run_settings import ENGINES, DataConfig, RunSettings
from sagann.cli.settings import SETTINGS
from sagann.nn import MODELS, ModelConfig
from sagann.nn.zoo import ENCODERS
from sagann.train import DECAY_POLICIES, TrainConfig

BY_NAME = {setting.name: setting for setting in SETTINGS}


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(SETTINGS)
    assert len({setting.option for setting in SETTINGS}) == len(SETTINGS)


@pytest.mark.parametrize(
    ("section", "config"), [("data", DataConfig), ("model", ModelConfig), ("train", TrainConfig)]
)
def test_every_field_is_a_setting(section: str, config: type) -> None:
    """A field of a type that the command line cannot read, or without a text, would be left out."""
    found = {setting.name for setting in SETTINGS if setting.section == section}
    assert found - {"engine"} == {field.name for field in fields(config)}


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
