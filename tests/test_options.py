"""Options: fields of the configurations, arguments of constructors, and the nearest name for a slip."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from sagann.config import SETTINGS
from sagann.constructor_options import check_options, require_options
from sagann.errors import InputError, closest, did_you_mean
from sagann.hybrid.policies import POLICIES
from sagann.nn import ModelConfig
from sagann.nn.on_vertices import DECODERS
from sagann.partition import BALANCES
from sagann.storage import ImportOptions
from sagann.tiering import CACHES, SCORES
from sagann.train import TrainConfig
from sagann.train.policies import DECAY_POLICIES


def test_configurations_load_neither_torch_nor_numpy() -> None:
    said = "import sys, sagann.cli.main; assert not {'torch', 'numpy', 'pydantic'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", said], check=True)


def test_help_is_the_text_of_a_field_without_markup() -> None:
    assert SETTINGS["data"].help == "A dataset folder, an .npz file, or the name of an embedded graph (demo)."
    for option in SETTINGS.values():
        assert option.help
        assert not any(each in option.help for each in ("`", "None", "  "))


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


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        (TrainConfig, {"learning_rat": 0.1, "epochs": 3}, "TrainConfig has no such option: 'learning_rat'"),
        (
            ModelConfig,
            {"hiden": 3},
            "ModelConfig has no such option: 'hiden' (in ModelConfig). Did you mean 'hidden'?",
        ),
        (ImportOptions, {"symmetrize": True}, "Did you mean 'symmetrise'?"),
        (TrainConfig, {"hidden": 64}, "ModelConfig has it."),
        (ModelConfig, {"lr": 0.1}, "TrainConfig has it."),
    ],
)
def test_unknown_options_are_refused_with_the_nearest_one(kind: Any, given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        kind(**given)
    assert said in str(caught.value)


def test_options_are_copied_changed_and_shown_as_others() -> None:
    config = TrainConfig(epochs=3)
    assert replace(config, lr=0.1).lr == 0.1
    assert pickle.loads(pickle.dumps(config)) == copy.copy(config) == config
    assert "epochs" in inspect.signature(TrainConfig).parameters
    with pytest.raises(InputError, match="Did you mean 'epochs'"):
        replace(config, epoch=3)  # type: ignore[call-arg]


class Plain:
    def __init__(
        self, size, rate=0, *, name="x", flag=False, count: int = 0.5, other: list[int] | None = None
    ) -> None:  # type: ignore[no-untyped-def,assignment]
        pass


@pytest.mark.parametrize("options", [{}, {"rate": 0.5, "name": "y", "flag": True, "count": 3, "other": "anything"}])
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


@pytest.mark.parametrize(("name", "near"), [("gnc", "gcn"), ("GCN", "gcn"), ("gated_gcn", "gated-gcn")])
def test_slips_are_recognised(name: str, near: str) -> None:
    assert did_you_mean(name, ["gin", "gcn", "sage", "gated-gcn", "residual-gcn"]) == f"Did you mean '{near}'? "


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("--learning_rate", "lr"),
        ("Fanouts", "sample"),
        ("CE", "cross_entropy"),
        ("BCEWithLogitsLoss", "bce"),
        ("SAGEConv", "sage"),
        ("GatedGraphConv", "ggnn"),
        ("auc", "roc_auc"),
    ],
)
def test_names_that_other_programs_use_are_recognised(name: str, near: str) -> None:
    known = [
        "link_rate",
        "lr",
        "sample",
        "sampling_threads",
        "bce",
        "cross_entropy",
        "edgeconv",
        "gat",
        "gated-gcn",
        "ggnn",
        "sage",
        "roc_auc",
    ]
    assert did_you_mean(name, known) == f"Did you mean '{near}'? "
    assert did_you_mean(name, ["tensorboard"]) == ""


@pytest.mark.parametrize("name", ["", "transformer", "gcn" * 20, 3, None, ["gcn"]])
def test_nothing_is_offered_where_nothing_is_near(name: object) -> None:
    assert did_you_mean(name, ["gcn", "sage"]) == ""


def test_advice_has_all_names() -> None:
    assert closest("adam", ["Adam", "SGD"]) == "Did you mean 'Adam'? Known: Adam, SGD."
    assert closest("x", [1, 2]) == "Known: 1, 2."
