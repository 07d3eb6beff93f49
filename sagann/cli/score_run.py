"""The work of ``sagann data score``: reads of features are sampled, and hot rows are compared by the share that they take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from sagann.byte_size import format_bytes
from sagann.cli.result_file import check_target
from sagann.errors import InputError, require_choice
from sagann.graph import Graph
from sagann.graph.feature_store import feature_store
from sagann.report.access_curves import curves_table, write_curves
from sagann.report.terminal import Terminal
from sagann.storage import load_graph
from sagann.storage.picture import require_drawing
from sagann.storage.verify import check_graph
from sagann.tiering import SCORES, access_curve, labelled_vertices, measured_accesses, score_vertices

ALL = "all"
"Split that has every vertex."


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreRequest:
    """What ``sagann data score`` was asked for."""

    scores: tuple[str, ...]
    "Names of the scores."
    fanouts: str
    "Fanouts as they were written: numbers with commas."
    batch_size: int
    "Number of seeds in a batch."
    split: str | None
    "Split that batches start from: a name, 'all', or None for the vertices to train on."
    seed: int
    "Seed of the sampled epoch."
    plot: Path | None
    "File for the picture of the curves."
    overwrite: bool
    "Whether the file for the picture may be replaced, where there is one already."


def score_run(dataset: str, request: ScoreRequest, terminal: Terminal) -> None:
    """Print the shares of reads that hot rows take, and draw the curves if asked for."""
    for name in request.scores:
        require_choice(name, SCORES, what="unknown score", where="--score")
    fanouts = _fanouts(request.fanouts)
    if request.plot is not None:
        require_drawing("--plot")
        check_target(request.plot, (".png",), overwrite=request.overwrite, option="--plot")
    graph = load_graph(dataset)
    # Scores and samplers rely on valid ids and masks. Features are not read.
    check_graph(replace(graph, features=None))
    seeds = _seeds(graph, request.split)
    counts = measured_accesses(
        graph.topology,
        seeds.nonzero().squeeze(1),
        fanouts,
        batch_size=request.batch_size,
        seed=request.seed,
    )
    scores = {
        name: score_vertices(graph, name, fanouts=fanouts, batch_size=request.batch_size, seeds=seeds)
        for name in request.scores
    }
    curves = {name: access_curve(score, counts) for name, score in scores.items()}
    curves["oracle"] = access_curve(counts, counts)
    # Nothing is shown of files that were cut.
    title = f"Reads of features that hot rows of {graph.name} take"
    terminal.show(curves_table(curves, title=title))
    terminal.say(_epoch(graph, int(seeds.sum()), int(counts.sum()), request.batch_size))
    if request.plot is not None:
        write_curves(request.plot, curves, title=title)
        terminal.show(f"Curves drawn in {request.plot}")


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
    text = f"An epoch of {batches:,} batches from {num_seeds:,} vertices reads {num_reads:,} rows"
    if graph.features is None:
        return f"{text}."
    store = feature_store(graph.features)
    return f"{text}, {format_bytes(num_reads * store.row_shape[0] * store.dtype.itemsize)} of dense features."


def _fanouts(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(
            f"fanouts are not understood: '{text[:80]}' (in --fanouts)",
            hint="Write a number per hop, with commas, as 25,10; -1 takes all in-edges.",
        ) from error
