"""Mutated configurations: refused with a message or trained, never a traceback, a hang or a wrong answer.

Valid settings of a tiny graph get some of their values replaced by others: of another type, out of range, not a
number, huge, unknown; in the file, on the command line, or in both.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from sagann.cli.run_settings import ENGINES
from sagann.cli.settings import SETTINGS
from sagann.nn import MODELS
from sagann.toml_text import format_toml
from tests.cli.conftest import Invoke

# Settings that only say how long to train, or where: mutated elsewhere, and fixed here for speed.
FIXED = {"data", "epochs", "device", "tensorboard", "workers"}
MUTABLE = [setting for setting in SETTINGS if setting.name not in FIXED]
LONGEST_S = 200

GOOD: dict[str, st.SearchStrategy[Any]] = {
    "model": st.sampled_from(sorted(MODELS)),
    "layers": st.integers(1, 4),
    "hidden": st.sampled_from([8, 16]),
    "dropout": st.floats(0, 0.9),
    "layer_norm": st.booleans(),
    "encoder": st.sampled_from(["auto", "none", "linear"]),
    "heads": st.sampled_from([1, 2, 8]),
    "out_heads": st.integers(1, 3),
    "attention_dropout": st.floats(0, 0.9),
    "linear_shortcut": st.booleans(),
    "teleport": st.floats(0, 0.9),
    "negative_slope": st.floats(-1, 1),
    "model_options": st.sampled_from([{}, {"teleport": 0.5}, {"heads": 4, "negative_slope": 0.1}]),
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
    "cache": st.sampled_from(["static", "s3-fifo", "look-ahead"]),
    "monitor": st.sampled_from(["none", "val/loss", "val/accuracy", "train/loss", "val/roc_auc"]),
    "patience": st.sampled_from(["none", 1, 5]),
    "weights": st.sampled_from(["none", "best", "last"]),
    "eval_every": st.integers(1, 3),
    "checkpoint_every": st.integers(1, 3),
    "keep_checkpoints": st.integers(1, 3),
    "engine": st.sampled_from(ENGINES),
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
SLOW = [("hidden", 10**6), ("out_heads", 10**6)]


def is_quick(values: dict[str, Any]) -> bool:
    return not any(values.get(name) == value for name, value in SLOW)


mutations = st.dictionaries(st.sampled_from(sorted(setting.name for setting in MUTABLE)), BAD, max_size=3).filter(
    is_quick
)
goods = st.fixed_dictionaries({}, optional=GOOD)


def sections(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    tables: dict[str, dict[str, Any]] = {}
    for setting in SETTINGS:
        if setting.name in values:
            tables.setdefault(setting.section, {})[setting.name] = values[setting.name]
    return tables


def as_options(values: dict[str, Any]) -> list[str]:
    """The same values as a person would type them."""
    arguments: list[str] = []
    for setting in SETTINGS:
        if setting.name not in values:
            continue
        value = values[setting.name]
        if setting.kind == "flag":
            arguments.append(setting.option if value else f"--no-{setting.option.removeprefix('--')}")
        elif setting.kind == "options" and isinstance(value, dict):
            arguments += [f"{setting.option}={key}={item}" for key, item in value.items()]
        elif setting.kind in ("integers", "weights") and isinstance(value, list):
            arguments.append(f"{setting.option}={','.join(map(str, value))}")
        else:
            # One word, so that a text that begins with a dash is a value.
            arguments.append(f"{setting.option}={value}")
    return arguments


def check(invoke: Invoke, arguments: list[object], run: Path) -> None:
    started_s = time.monotonic()
    outcome = invoke("train", *arguments, "--overwrite")
    assert time.monotonic() - started_s < LONGEST_S
    assert outcome.code in (0, 2), outcome.err
    assert "Traceback" not in outcome.err
    if outcome.code == 2:
        assert "Error: " in outcome.err
        return
    metrics = json.loads((run / "metrics.json").read_text())
    for split in ("train", "val", "test"):
        for value in metrics[split].values():
            assert math.isfinite(value)
        assert 0 <= metrics[split].get("accuracy", 0) <= 1


def check_file(invoke: Invoke, blocks: Path, folder: Path, values: dict[str, Any]) -> None:
    tables = sections({**values, "data": str(blocks), "epochs": 2, "device": "cpu"})
    (folder / "run.toml").write_text(format_toml(tables), encoding="utf-8")
    check(invoke, ["--config", folder / "run.toml", "--out", folder / "run"], folder / "run")


FUZZ = settings(
    deadline=None,
    max_examples=80,
    # The folders are the same for all examples: each run overwrites the one before.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@settings(FUZZ, max_examples=10)
@given(good=goods, bad=mutations)
def test_a_few_mutated_files(
    invoke: Invoke, blocks: Path, tmp_path: Path, good: dict[str, Any], bad: dict[str, Any]
) -> None:
    check_file(invoke, blocks, tmp_path, {**good, **bad})


@pytest.mark.slow
@FUZZ
@given(good=goods, bad=mutations)
def test_mutated_files(
    invoke: Invoke, blocks: Path, tmp_path: Path, good: dict[str, Any], bad: dict[str, Any]
) -> None:
    check_file(invoke, blocks, tmp_path, {**good, **bad})


@pytest.mark.slow
@FUZZ
@given(good=goods, bad=mutations)
def test_mutated_options(
    invoke: Invoke, blocks: Path, tmp_path: Path, good: dict[str, Any], bad: dict[str, Any]
) -> None:
    options = as_options({**good, **bad})
    run = tmp_path / "run"
    check(invoke, ["--data", blocks, "--epochs", "2", "--device", "cpu", *options, "--out", run], run)


@FUZZ
@given(
    tables=st.dictionaries(
        st.sampled_from(["data", "model", "train", "models", ""]) | TEXT,
        st.dictionaries(st.sampled_from([setting.name for setting in MUTABLE]) | TEXT, BAD, max_size=3).filter(
            is_quick
        ),
        max_size=3,
    ),
    noise=st.binary(max_size=8),
)
def test_files_of_any_keys(
    invoke: Invoke, blocks: Path, tmp_path: Path, tables: dict[str, dict[str, Any]], noise: bytes
) -> None:
    written = "".join(
        f"[{json.dumps(name)}]\n"
        + "".join(
            f"{json.dumps(key)} = {format_toml({'t': {'k': value}}).split(' = ', 1)[1]}" for key, value in t.items()
        )
        for name, t in tables.items()
    )
    (tmp_path / "run.toml").write_bytes(written.encode() + noise)
    run = tmp_path / "run"
    arguments = ["--config", tmp_path / "run.toml", "--data", blocks, "--epochs", 2, "--out", run]
    check(invoke, arguments, run)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(setting.name for setting in SETTINGS if setting.kind == "integer"))
@pytest.mark.parametrize("value", [-1, 0, 2**31, 2**63, 10**19, 10**40])
def test_integers_at_their_edges(invoke: Invoke, blocks: Path, tmp_path: Path, name: str, value: int) -> None:
    if name == "epochs" and value > 0:
        pytest.skip("any number of epochs may be asked for, and is trained")
    option = next(setting.option for setting in SETTINGS if setting.name == name)
    arguments = ["--data", blocks, "--epochs", "2", f"{option}={value}", "--out", tmp_path / "run"]
    check(invoke, arguments, tmp_path / "run")
