"""The table of settings and the configurations must say the same."""

from __future__ import annotations

from dataclasses import MISSING, fields

import pytest

from sagann.cli.run_settings import DataConfig
from sagann.cli.settings import DATA_SETTINGS, ENGINES, MODEL_SETTINGS, SETTINGS, TRAIN_SETTINGS
from sagann.nn import MODELS, ModelConfig
from sagann.nn.zoo import ENCODERS
from sagann.train import DECAY_POLICIES, TrainConfig

KINDS = {"integer": int, "number": float, "flag": bool, "text": str}


def test_names_are_unique() -> None:
    assert len({setting.name for setting in SETTINGS}) == len(SETTINGS)
    assert len({setting.option for setting in SETTINGS}) == len(SETTINGS)


@pytest.mark.parametrize(
    ("settings", "config"),
    [(DATA_SETTINGS, DataConfig), (MODEL_SETTINGS, ModelConfig), (TRAIN_SETTINGS, TrainConfig)],
)
def test_every_field_is_a_setting(settings: tuple, config: type) -> None:
    assert {setting.name for setting in settings} - {"engine"} == {field.name for field in fields(config)}


@pytest.mark.parametrize(("settings", "config"), [(MODEL_SETTINGS, ModelConfig), (TRAIN_SETTINGS, TrainConfig)])
def test_kinds_and_defaults_are_those_of_the_configuration(settings: tuple, config: type) -> None:
    by_name = {field.name: field for field in fields(config)}
    for setting in settings:
        if setting.name == "engine":
            assert setting.default == ENGINES[0]
            continue
        field = by_name[setting.name]
        if setting.kind == "options":
            assert field.default_factory is dict
            continue
        assert field.default is not MISSING
        assert setting.optional == (field.default is None), setting.name
        if field.default is None:
            # What the default comes to is told in words.
            assert setting.default
        else:
            assert type(field.default) is KINDS[setting.kind], setting.name
            written = {True: "yes", False: "no"}[field.default] if setting.kind == "flag" else str(field.default)
            assert setting.default == written, setting.name


def test_choices_in_the_help_are_those_there_are() -> None:
    by_name = {setting.name: setting for setting in SETTINGS}
    assert by_name["encoder"].metavar == "|".join(ENCODERS)
    assert by_name["decay"].metavar == "|".join(DECAY_POLICIES)
    assert by_name["engine"].metavar == "|".join(ENGINES)
    assert by_name["model"].help.startswith(", ".join(MODELS))
