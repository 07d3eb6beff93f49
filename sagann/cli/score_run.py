"""The work of ``sagann data score``: reads of features are sampled, and hot rows are compared by the share that they take.

References:
    Graph Neural Network Training with Data Tiering, 2021, Fig. 7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from sagann.byte_size import format_bytes
from sagann.cli.result_file import check_target
from sagann.errors import InputError, require_choice
from sagann.graph import Graph
from sagann.graph.feature_store import feature_store
from sagann.report.terminal import Terminal, table
from sagann.storage import load_graph
from sagann.storage.picture import new_figure, require_drawing, write_figure
from sagann.storage.verify import check_graph
from sagann.tiering import SCORES, access_curve, labelled_vertices, measured_accesses, score_vertices

ALL = "all"
"Split that has every vertex."
_HOT_SHARES = (0.01, 0.05, 0.1, 0.25, 0.5)
"Shares of all rows that are hot, in the table."
_MOST_POINTS = 1000


def score_run(
    dataset: str,
    terminal: Terminal,
    *,
    names: Sequence[str],
    fanouts_text: str,
    batch_size: int,
    split: str | None,
    seed: int,
    plot: Path | None,
    overwrite: bool,
) -> None:
    """Print the shares of reads that hot rows take, and draw the curves if asked for."""
    for name in names:
        require_choice(name, SCORES, what="unknown score", where="--score")
    try:
        fanouts = [int(part) for part in fanouts_text.split(",")]
    except ValueError as error:
        raise InputError(
            f"fanouts are not understood: '{fanouts_text[:80]}' (in --fanouts)",
            hint="Write a number per hop, with commas, as 25,10; -1 takes all in-edges.",
        ) from error
    if plot is not None:
        require_drawing("--plot")
        check_target(plot, (".png",), overwrite=overwrite, option="--plot")
    graph = load_graph(dataset)
    # Scores and samplers rely on valid ids and masks. Features are not read.
    check_graph(replace(graph, features=None))
    seeds = _seeds(graph, split)
    ids = seeds.nonzero().squeeze(1)
    counts = measured_accesses(graph.topology, ids, fanouts, batch_size=batch_size, seed=seed)
    scores = {
        name: score_vertices(graph, name, fanouts=fanouts, batch_size=batch_size, seeds=seeds) for name in names
    }
    curves = {name: access_curve(score, counts) for name, score in scores.items()}
    curves["oracle"] = access_curve(counts, counts)
    title = f"Reads of features that hot rows of {graph.name} take"
    # A row per share of hot rows, a column per curve: the share of reads that the hot rows take.
    rows = [
        (f"{hot:.0%}", *(f"{float(curve[int(hot * (len(curve) - 1))]):.1%}" for curve in curves.values()))
        for hot in _HOT_SHARES
    ]
    terminal.show(table(title, ["hot rows", *curves], rows, num_texts=0))
    terminal.say(_epoch(graph, int(seeds.sum()), int(counts.sum()), batch_size))
    if plot is not None:
        write_curves(plot, curves, title=title)
        terminal.show(f"Curves drawn in {plot}")


def write_curves(path: Path, curves: Mapping[str, Tensor], *, title: str) -> None:
    """Draw curves, by name, as a PNG file: rows from hot to cold, and the share of reads that they take together."""
    figure = new_figure(6, 4, feature="a picture of access curves")
    axis = figure.subplots()
    for name, curve in curves.items():
        num_rows = len(curve) - 1
        points = torch.linspace(0, num_rows, min(num_rows, _MOST_POINTS) + 1, dtype=torch.float64).round().long()
        style = "--" if name == "oracle" else "-"
        axis.plot((100 * points / max(1, num_rows)).numpy(), (100 * curve[points]).numpy(), style, label=name)
    axis.set(xlim=(0, 100), ylim=(0, 100), xlabel="hottest rows, %", ylabel="reads, %")
    axis.set_title(title, loc="left", size=9)
    axis.grid(visible=True, alpha=0.3)
    axis.legend(loc="lower right", frameon=False)
    write_figure(path, figure)


def _seeds(graph: Graph, split: str | None) -> Tensor:
    """The vertices that batches start from, bool [num_vertices]."""
    if split is None:
        seeds = labelled_vertices(graph)
    elif split == ALL:
        seeds = torch.ones(graph.num_vertices, dtype=torch.bool)
    else:
        require_choice(split, [*graph.splits, ALL], what="the dataset has no such split", where="--split")
        seeds = graph.splits[split]
    if not seeds.any():
        raise InputError(
            f"no vertex to start batches from: 0 of {graph.num_vertices} vertices (in graph '{graph.name}')",
            hint="Name another split, or --split all.",
        )
    return seeds


def _epoch(graph: Graph, num_seeds: int, num_reads: int, batch_size: int) -> str:
    batches = -(-num_seeds // batch_size)
    text = f"An epoch of {batches:,} {'batch' if batches == 1 else 'batches'} from {num_seeds:,} vertices reads {num_reads:,} rows"
    if graph.features is None:
        return f"{text}."
    store = feature_store(graph.features)
    return f"{text}, {format_bytes(num_reads * store.row_shape[0] * store.dtype.itemsize)} of dense features."
