"""Options: fields of the configurations, which tell everything that is known of an option."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from sagann.config import SETTINGS
from sagann.errors import InputError
from sagann.nn import MODELS
from sagann.nn.link_model import DECODERS
from sagann.partition import BALANCES
from sagann.plan.hybrid.policies import POLICIES
from sagann.tiering import CACHES, SCORES
from sagann.train.policies import DECAY_POLICIES


def test_configurations_load_neither_torch_nor_numpy() -> None:
    said = "import sys, sagann.cli.main; assert not {'torch', 'numpy', 'pydantic'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", said], check=True)


def test_help_is_the_text_of_a_field_without_markup() -> None:
    assert SETTINGS["data"].help == "A dataset folder, an .npz file, or the name of an embedded graph (demo)."
    for option in SETTINGS.values():
        assert option.help
        assert not any(each in option.help for each in ("`", "None", "  "))
    assert all(name in SETTINGS["model"].help for name in MODELS)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("decoder", ("auto", *DECODERS)),
        ("balance", BALANCES),
        ("sharing", POLICIES),
        ("score", SCORES),
        ("cache", CACHES),
        ("decay", DECAY_POLICIES),
    ],
)
def test_choices_are_those_there_are(name: str, known: Any) -> None:
    assert set(SETTINGS[name].metavar.split("|")) == {*known}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("seed", "-3", -3),
        ("lr", "1e-3", 0.001),
        ("patience", "none", None),
        ("sample", "25,-1", (25, -1)),
        ("sample", " 7", (7,)),
        ("class_weights", "balanced", "balanced"),
        ("class_weights", "1,2.5", (1.0, 2.5)),
        ("epochs", "9" * 10_000, "9" * 10_000),
    ],
)
def test_a_text_becomes_a_value_or_stays_a_text(name: str, text: str, value: object) -> None:
    found = SETTINGS[name].from_command_line(text)
    assert (found, type(found)) == (value, type(value))


def test_arguments_are_toml_values_or_bare_words() -> None:
    option = SETTINGS["optimizer_options"]
    found = option.from_command_line(["betas=[0.9, 0.99]", "foreach=false", "mode=min", "x=1\ny=2", "e="])
    assert found == {"betas": [0.9, 0.99], "foreach": False, "mode": "min", "x": "1\ny=2", "e": ""}
    for text in ("betas", "=1"):
        with pytest.raises(InputError, match="optimizer_options is not KEY=VALUE"):
            option.from_command_line([text])
