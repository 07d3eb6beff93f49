"""The report: a table for each section, every figure from the results file."""

from __future__ import annotations

import platform
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from bench.accuracy.experiments import EXPERIMENTS, NUM_SEEDS, Experiment
from bench.pages import head, row

Values = defaultdict[tuple[str, str], list[float]]
"Test metrics in percent, by experiment and system."
# Published means are reproduced when ours is no more than this below, in points.
MARGIN = 1.0

INTRODUCTION = """# Accuracy, reproduced

sagann reproduces {reproduced} published accuracies, and equals PyG in {equal} comparisons{open}.

`make accuracy` writes this page. Each cell is the mean ± standard deviation of the test metric in percent, over {seeds} seeds (or the
number in the column *runs*), with the weights that are best on the validation vertices; PyTorch {torch}, {machine}, CPU. In the column
*PyG*, a plain training loop trains the same architecture, built from PyG's layers, with the same settings, graph and split
(`bench/accuracy/twins.py`). A row stays *open* until both systems have all runs. `bench/results/accuracy.jsonl` has every run, and
`bench/accuracy/experiments.py` the settings.
"""

SETTINGS = """## Settings

- aifb has no validation vertices, so the weights of the last epoch count.
- To keep a run within minutes, GCN trains for 100 epochs (200 in the paper), and GAT on cora and citeseer for 100 (up to 1000) at twice the
  learning rate. GAT on pubmed trains for up to 1000 epochs with a patience of 100, as in the paper, but selects weights by accuracy
  alone (the paper: by accuracy and loss).
- The rows of *Published figures* use `--engine naive`, all others the compiled engine.
- `bench/results/accuracy_settings.md` lists settings that were abandoned after their test metric was known.
"""


def write_report(results: list[dict], out: Path) -> None:
    """Write the tables of ``results`` to ``out``."""
    values = values_of(results)
    published = f"Public split. *Reproduced*: at most {MARGIN:g} point below the published mean."
    sections = [("Published figures", published, _published(values))]
    sections += [
        (heading, said, _against_pyg(section, columns, values))
        for section, (heading, said, columns) in TWINS.items()
    ]
    tables = ["\n".join([f"## {heading}\n\n{said}\n", *lines, ""]) for heading, said, lines in sections]
    reproduced, equal = verdicts(values)
    num_open = sum(_is_open(one, values) for one in _with_twins())
    introduction = INTRODUCTION.format(
        reproduced=f"{sum(reproduced)} of {len(reproduced)}",
        equal=f"{sum(equal)} of {len(equal)}",
        open=f"; {num_open} more are open" if num_open else "",
        seeds=NUM_SEEDS,
        torch=torch.__version__.partition("+")[0],
        machine=platform.machine(),
    )
    parts = [introduction, *tables, SETTINGS]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(parts))


def verdicts(values: Values) -> tuple[list[bool], list[bool]]:
    """For every published mean, whether it is reproduced; for every comparison with PyG that has all seeds, whether the two are equal."""
    published = [is_reproduced(one, values[one.key, "sagann"]) for one in _of("published")]
    compared = [one for one in _with_twins() if not _is_open(one, values)]
    return published, [is_equal(*_compared(one, values)) for one in compared]


def values_of(results: Iterable[Mapping[str, Any]]) -> Values:
    """Test metrics in percent, by experiment and system."""
    values: Values = defaultdict(list)
    for each in results:
        values[each["key"], each["system"]].append(each["value"])
    return values


def is_reproduced(experiment: Experiment, ours: Sequence[float]) -> bool:
    """Whether enough runs reach the published mean, but for ``MARGIN``."""
    assert experiment.published is not None
    return len(ours) >= NUM_SEEDS and experiment.published - fmean(ours) <= MARGIN


def is_equal(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """Whether the means of two samples differ by no more than the larger of their standard deviations."""
    return abs(fmean(ours) - fmean(theirs)) <= max(_deviation(ours), _deviation(theirs))


def _published(values: Values) -> list[str]:
    columns = "dataset | model | published | sagann | runs | reproduced | source"
    lines = [head(columns, words=("model", "reproduced", "source"))]
    for each in _of("published"):
        ours = values[each.key, "sagann"]
        verdict = "yes" if is_reproduced(each, ours) else "open"
        if verdict == "open" and len(ours) >= NUM_SEEDS:
            verdict = f"no, {each.published - fmean(ours):.1f} below"
        cells = [each.dataset, each.model.model, each.published, _spread(ours), len(ours)]
        lines.append(row([*cells, verdict, each.source]))
    return lines


def _against_pyg(section: str, columns: Mapping[str, Callable[[Experiment], object]], values: Values) -> list[str]:
    """The table of a section that PyG's twins run too: columns of its own, and then the figures of both."""
    words = [name for name in columns if name in ("model", "metric", "fanouts", "pool")]
    lines = [head([*columns, "PyG", "sagann", "runs (sagann, PyG)", "equal"], words=[*words, "equal"])]
    for each in _of(section):
        ours, theirs = _compared(each, values)
        verdict = "open"
        if not _is_open(each, values):
            short = fmean(theirs) - fmean(ours)
            verdict = (
                "yes" if is_equal(ours, theirs) else f"no, {abs(short):.1f} {'below' if short > 0 else 'above'}"
            )
        figures = [_spread(theirs), _spread(ours), f"{len(ours)}, {len(theirs)}", verdict]
        lines.append(row([*(cell(each) for cell in columns.values()), *figures]))
    return lines


def _model(experiment: Experiment) -> str:
    model = experiment.model
    return f"{model.model}, {model.layers} layers, hidden {model.hidden}, encoder {model.encoder}"


_BATCHES: Mapping[str, Callable[[Experiment], object]] = {
    "batch size": lambda each: each.train["batch_size"],
    "epochs": lambda each: each.train["epochs"],
}
_NAMED: Mapping[str, Callable[[Experiment], object]] = {"dataset": lambda each: each.dataset, "model": _model}
# For each section that PyG's twins run: heading, explanation and columns.
TWINS: Mapping[str, tuple[str, str, Mapping[str, Callable[[Experiment], object]]]] = {
    "pyg": (
        "PyG with the same settings",
        "*Equal*: the means differ by at most one standard deviation (the larger of the two).",
        {**_NAMED, "metric": lambda each: each.metric},
    ),
    "residual": (
        "Deep residual GCN",
        "ROC, Sec. 7.5, on cora instead of the paper's Reddit, which is not available: width 64, against the same model built from PyG's GCNConv.",
        {"layers": lambda each: each.model.layers},
    ),
    "sampled": (
        "Mini-batches",
        "Sampled mini-batches, against PyG's NeighborLoader (with torch-sparse) with the same fanouts, batch size and epochs. PyG samples a\n"
        "vertex once, sagann once per hop; both evaluate with all neighbours.",
        {**_NAMED, "fanouts": lambda each: ", ".join(map(str, each.train["sample"])), **_BATCHES},
    ),
    "graphs": (
        "Whole graphs",
        "Batches of pooled graphs, against PyG's DataLoader, layers and pooling with the same splits. The target of qm9_20k is its first property,\n"
        "whose standard deviation is about 1, so `mae` is in percent of that; lower is better.",
        {**_NAMED, "pool": lambda each: each.model.pool, **_BATCHES, "metric": lambda each: each.metric},
    ),
}


def _with_twins() -> list[Experiment]:
    return [each for section in TWINS for each in _of(section)]


def _compared(experiment: Experiment, values: Values) -> tuple[Sequence[float], Sequence[float]]:
    return values[experiment.key, "sagann"], values[experiment.key, "pyg"]


def _is_open(experiment: Experiment, values: Values) -> bool:
    """Whether seeds of either system are missing."""
    return min(map(len, _compared(experiment, values))) < experiment.seeds


def _of(section: str) -> list[Experiment]:
    return [experiment for experiment in EXPERIMENTS if experiment.section == section]


def _deviation(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1))


def _spread(values: list[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.1f}" if values else "not run"
    return f"{fmean(values):.1f} ± {_deviation(values):.1f}"
