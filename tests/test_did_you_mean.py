"""The nearest known name: offered for slips, and never for long or hostile names."""

import time

import pytest

from sagann.did_you_mean import LONGEST, closest, did_you_mean


@pytest.mark.parametrize(
    ("name", "near"),
    [("gnc", "gcn"), ("GCN", "gcn"), ("gated_gcn", "gated-gcn")],
)
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


@pytest.mark.parametrize("name", ["", "transformer", "gcn" * 20, "gc\x1b[31mn", "gc\nn", 3, None, ["gcn"]])
def test_nothing_is_offered_where_nothing_is_near_or_the_name_is_strange(name: object) -> None:
    assert did_you_mean(name, ["gcn", "sage"]) == ""


def test_no_strange_name_is_offered() -> None:
    assert did_you_mean("weight", ["weight\x1b[2J", "weight\n", "w" * (LONGEST + 1)]) == ""
    assert did_you_mean("wieght", ["weight\x1b[2J", "weights"]) == "Did you mean 'weights'? "


def test_many_long_names_take_no_time() -> None:
    names = (f"{'a' * 20}{number}" for number in range(10**6))
    began = time.process_time()
    did_you_mean("a" * LONGEST, names)
    assert time.process_time() - began < 5


def test_advice_has_all_names() -> None:
    assert closest("adam", ["Adam", "SGD"]) == "Did you mean 'Adam'? Known: Adam, SGD."
    assert closest("x", [1, 2]) == "Known: 1, 2."
