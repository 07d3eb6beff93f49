"""Any settings, in a file or on the command line, are refused with a message, or train: never a traceback or a wrong answer.

Valid settings of a tiny graph get some of their values replaced by others: of another type, out of range, not a number, huge, unknown.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from sagann.config import SETTINGS
from sagann.nn import MODELS
from sagann.options import Arguments
from sagann.toml_text import format_toml
from tests.cli.conftest import Invoke

# Settings that only say how long to train, or where: mutated elsewhere, and fixed here for speed.
FIXED = {"data", "epochs", "device", "tensorboard", "workers"}
MUTABLE = sorted(set(SETTINGS) - FIXED)

GOOD: dict[str, st.SearchStrategy[Any]] = {
    "model": st.sampled_from(sorted(MODELS)),
    "layers": st.integers(1, 4),
    "hidden": st.sampled_from([8, 16]),
    "dropout": st.floats(0, 0.9),
    "norm": st.sampled_from(["none", "batch", "layer"]),
    "encoder": st.sampled_from(["auto", "none", "linear"]),
    "heads": st.sampled_from([1, 2, 8]),
    "model_options": st.sampled_from([{}, {"teleport": 0.5}, {"out_heads": 2, "attention_dropout": 0.3}]),
    "task": st.sampled_from(["none", "classification"]),
    "loss": st.sampled_from(["none", "cross_entropy"]),
    "class_weights": st.sampled_from(["none", "balanced", [1, 2.5, 0.5]]),
    "optimizer": st.sampled_from(["Adam", "AdamW", "SGD", "RMSprop", "Adagrad"]),
    "lr": st.floats(1e-4, 0.1),
    "weight_decay": st.floats(0, 0.1),
    "decay": st.sampled_from(["all", "first-layer", "matrices"]),
    "scheduler": st.sampled_from(["none", "ConstantLR", "ExponentialLR", "CosineAnnealingLR"]),
    "clip_norm": st.floats(0.1, 10),
    "seed": st.integers(0, 2**63 - 1),
    "sample": st.sampled_from(["none", [3], [3, -1], [1, 2, 3]]),
    "batch_size": st.sampled_from([16, 1024]),
    "sampling_threads": st.sampled_from([1, 2]),
    "batches_ahead": st.integers(0, 3),
    "hot": st.sampled_from(["none", "0%", "20%", "1MiB"]),
    "score": st.sampled_from(["degree", "rpr", "wrpr", "vip"]),
    "cache": st.sampled_from(["static", "look-ahead"]),
    "monitor": st.sampled_from(["none", "val/loss", "val/accuracy", "train/loss", "val/roc_auc"]),
    "patience": st.sampled_from(["none", 1, 5]),
    "weights": st.sampled_from(["none", "best", "last"]),
    "eval_every": st.integers(1, 3),
    "checkpoint_every": st.integers(1, 3),
    "keep_checkpoints": st.integers(1, 3),
    "engine": st.sampled_from(["compiled", "lean", "naive"]),
    "worker_timeout": st.sampled_from([1.5, 60]),
    "balance": st.sampled_from(["edges", "vertices", "cost"]),
    "split": st.sampled_from(["none", "random:0.5,0.2", "per-class:3,3"]),
    "undirected": st.booleans(),
    "normalise_features": st.booleans(),
    "verify": st.booleans(),
}
HUGE = st.sampled_from([2**31, 2**53, 2**63, 2**64, 10**30, 1e30, 1e308, -1, 0, 100, 10**6])
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
BAD: st.SearchStrategy[Any] = st.one_of(
    HUGE,
    st.sampled_from([math.nan, math.inf, -math.inf, 1e-320, -0.0, "", "none", "nan", "0x10", "1e400", "∞"]),
    st.booleans(),
    TEXT,
    st.lists(st.integers(0, 3), max_size=2),
    st.dictionaries(TEXT, st.integers() | TEXT, max_size=2),
    st.sampled_from(["Adam", "LBFGS", "SparseAdam", "OneCycleLR", "ReduceLROnPlateau", "LambdaLR", "Optimizer"]),
    st.sampled_from(
        ["random:nan,0", "per-class:0,0", "graphs:0/0/0", "planetoid:9,9,9", "test/accuracy", "a.py:B"]
    ),
)
# A width of a million is refused where memory is short, and else trained, for minutes: no mutation, but slow.
SLOW = [("hidden", 10**6)]


mutations = st.dictionaries(st.sampled_from(MUTABLE), BAD, max_size=3).filter(
    lambda values: not any(values.get(name) == value for name, value in SLOW)
)
goods = st.fixed_dictionaries({}, optional=GOOD)


def as_tables(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The values as a file has them."""
    tables: dict[str, dict[str, Any]] = {}
    for setting in SETTINGS.values():
        if setting.name in values:
            tables.setdefault(setting.section, {})[setting.name] = values[setting.name]
    return tables


def as_options(values: dict[str, Any]) -> list[str]:
    """The same values as a person would type them."""
    arguments: list[str] = []
    for setting in SETTINGS.values():
        if setting.name not in values:
            continue
        value = values[setting.name]
        if setting.type is bool:
            arguments.append(setting.flag if value else f"--no-{setting.flag.removeprefix('--')}")
        elif setting.type == Arguments and isinstance(value, dict):
            arguments += [f"{setting.flag}={key}={item}" for key, item in value.items()]
        elif isinstance(value, list):
            arguments.append(f"{setting.flag}={','.join(map(str, value))}")
        else:
            # One word, so that a text that begins with a dash is a value.
            arguments.append(f"{setting.flag}={value}")
    return arguments


def check(invoke: Invoke, arguments: list[object], run: Path) -> None:
    outcome = invoke("train", *arguments, "--device", "cpu", "--out", run, "--overwrite")
    assert outcome.code in (0, 2), outcome.err
    assert "Traceback" not in outcome.err
    if outcome.code == 2:
        assert "Error: " in outcome.err
        return
    metrics = json.loads((run / "metrics.json").read_text())
    for split in ("train", "val", "test"):
        assert all(math.isfinite(value) for value in metrics[split].values())
        assert 0 <= metrics[split].get("accuracy", 0) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("num_examples", [30, pytest.param(300, marks=pytest.mark.thorough)])
def test_any_settings(invoke: Invoke, blocks: Path, tmp_path: Path, num_examples: int) -> None:
    @settings(
        deadline=None, derandomize=True, max_examples=num_examples, suppress_health_check=[HealthCheck.too_slow]
    )
    @given(good=goods, bad=mutations, in_file=st.booleans())
    def train(good: dict[str, Any], bad: dict[str, Any], in_file: bool) -> None:
        values, arguments = {**good, **bad}, ["--data", blocks, "--epochs", 2]
        if in_file:
            (tmp_path / "run.toml").write_text(format_toml(as_tables(values)), encoding="utf-8")
            arguments += ["--config", tmp_path / "run.toml"]
        else:
            arguments += as_options(values)
        check(invoke, arguments, tmp_path / "run")

    train()


INTEGERS = sorted(name for name, setting in SETTINGS.items() if setting.type is int and name != "epochs")


@pytest.mark.slow
@pytest.mark.parametrize("name", INTEGERS)
def test_integers_at_their_edges(invoke: Invoke, blocks: Path, tmp_path: Path, name: str) -> None:
    for value in (-1, 0, 2**31, 2**63, 10**40):
        check(invoke, ["--data", blocks, "--epochs", 2, f"{SETTINGS[name].flag}={value}"], tmp_path / "run")
