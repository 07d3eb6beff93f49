"""The graph of a run: opened, checked, changed as asked, and split."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from sagann.config import LINK_TASK, DataConfig
from sagann.errors import InputError, listed, shown
from sagann.graph import (
    Graph,
    add_inverse_edges,
    for_task,
    graph_split,
    per_class_split,
    planetoid_split,
    random_graph_split,
    random_split,
    symmetrise,
)
from sagann.graph.answers import as_columns
from sagann.graph.graph import (
    LEARNED,
    SPLIT_OF_EDGES,
    VALIDATED,
    answers_of,
    left_out,
    task_of,
    without_others,
)
from sagann.graph.transform import normalise_features
from sagann.storage import load_graph
from sagann.storage.load import EMBEDDED, embedded_graph
from sagann.storage.verify import check_graph

LINK_SHARES = f"edges:{LEARNED},{VALIDATED}"
"The default split of links of data that state none."
_OWN_SPLIT = f"edge data '{SPLIT_OF_EDGES}'"
_LINK_SHARES_SAID = (
    f"{LEARNED:.0%} of the edges are learned, {VALIDATED:.0%} validate, {1 - LEARNED - VALIDATED:.0%} test"
).replace("%", " %")


def training_graph(
    config: DataConfig, *, task: str | None, seed: int, say: Callable[[str], None], check: bool = True
) -> Graph:
    """Open the graph that ``config`` names, with the answers of one task and a split to train on; ``say`` gets notes on defaults and on data that are left out."""
    graph = with_task(open_checked(config, keep_splits=config.split is None, check=check), config, task, say)
    if config.data.endswith(".npz") and os.path.isfile(config.data):
        from sagann.storage.npz_graph import arrays_left_out

        if names := arrays_left_out(config.data):
            say(f"Arrays left out: {listed(names)}.")
    if task == LINK_TASK:
        return with_held_out(graph, config.split, seed=seed, say=say)
    return _with_split(graph, config, seed=seed, say=say)


def with_task(graph: Graph, config: DataConfig, task: str | None, say: Callable[[str], None]) -> Graph:
    """The graph with the answers of one task, and of its targets the columns of ``config``; ``say`` is told of answers that are left out."""
    # Links are held out of any graph.
    kept = without_others(graph, task) if task == LINK_TASK else for_task(graph, task, where="--task")
    if said := left_out(graph, task or task_of(kept)):
        say(said)
    if config.targets is not None and kept.targets is None and kept.graph_targets is None:
        raise InputError(
            f"there are no targets to choose from: the graph has {answers_of(kept)} (in --targets)",
            hint="Leave it out, or choose a regression with --task.",
        )
    return with_columns(kept, config.targets)


def with_columns(graph: Graph, columns: Sequence[int] | None) -> Graph:
    """The graph with some columns of its targets, if it has any; with all for None."""
    if columns is None:
        return graph
    chosen: dict[str, Any] = {}
    for name in ("targets", "graph_targets"):
        values = getattr(graph, name)
        if values is None:
            continue
        values = as_columns(values)
        if (
            not columns
            or len(set(columns)) < len(columns)
            or not all(0 <= each < values.shape[1] for each in columns)
        ):
            raise InputError(
                f"no such targets: {shown(list(columns))}; there are {values.shape[1]}, numbered from 0 (in "
                "--targets)",
                hint="Name each column once, as --targets 0,2.",
            )
        chosen[name] = values[:, list(columns)]
    return replace(graph, **chosen)


def link_split(graph: Graph, choice: str | None) -> str:
    """The split of links that ``choice`` names, 'edges:TRAIN,VAL'; for None that of the data, or LINK_SHARES."""
    return choice or (_OWN_SPLIT if SPLIT_OF_EDGES in graph.topology.edge_data else LINK_SHARES)


def with_held_out(graph: Graph, choice: str | None, *, seed: int, say: Callable[[str], None]) -> Graph:
    """The graph with links held out as :func:`link_split` says; ``say`` is told of a default."""
    from sagann.sampling import hold_out_links

    split = link_split(graph, choice)
    if choice is None:
        said = f"The {_OWN_SPLIT} say which edges are learned, validate and test"
        say(f"{said if split == _OWN_SPLIT else _LINK_SHARES_SAID} (seed {seed}).")
    if split == _OWN_SPLIT:
        return hold_out_links(graph, seed=seed)
    kind, _, text = split.partition(":")
    shares: list[float] = []
    with suppress(ValueError):
        shares = [float(part) for part in text.split(",")]
    if kind != "edges" or len(shares) != 2 or not all(0 <= share <= 1 for share in (*shares, sum(shares))):
        raise InputError(
            f"split is not one of links: '{split[:80]}' (in --split)",
            hint=f"Write {LINK_SHARES} (shares of the edges to learn and to validate on, at most 1 together).",
        )
    return hold_out_links(graph, train=shares[0], val=shares[1], seed=seed)


def _with_split(graph: Graph, config: DataConfig, *, seed: int, say: Callable[[str], None]) -> Graph:
    if config.split is not None:
        return apply_split(graph, config.split, seed=seed)
    answers = graph.answers
    splits = answers.splits
    if "train" in splits:
        return graph
    labelled = "graphs with a known answer" if answers.unit == "graph" else "labelled vertices"
    if splits:
        raise InputError(
            f"the dataset has splits, but none to train on: {', '.join(splits)} (in graph '{graph.name}')",
            hint=f"Ask for a split of its {labelled}, as --split random:0.6,0.2.",
        )
    graph = apply_split(graph, "random:0.6,0.2", seed=seed)
    say(f"The dataset has no splits: 60 % of the {labelled} train, 20 % validate, 20 % test (seed {seed}).")
    return graph


def open_checked(config: DataConfig, *, keep_splits: bool, num_edge_types: int = 0, check: bool = True) -> Graph:
    """Open the graph that ``config`` names, check every value, and change it as asked; the dataset's own splits are kept and checked, or dropped.

    ``num_edge_types`` is the number of edge types, with inverses, of the graph that a model was trained on; 0 without a model.
    """
    # A path would be absolute, so this is a name.
    graph = (
        embedded_graph(config.data) if config.data in EMBEDDED else load_graph(config.data, verify=config.verify)
    )
    if not keep_splits:
        graph = replace(graph, splits={}, graph_splits={})
    # Opening a folder does not check values, and the changes below need valid ones.
    if check:
        check_graph(graph)
    if config.undirected:
        graph = symmetrise(graph)
    if config.inverse_edges:
        # Inverses are numbered from the number of types on, so a graph that lacks the last types must count them too.
        if "type" in graph.topology.edge_data:
            graph = replace(graph, num_edge_types=max(graph.num_edge_types, num_edge_types // 2))
        graph = add_inverse_edges(graph)
    return normalise_features(graph) if config.normalise_features else graph


def apply_split(graph: Graph, choice: str, *, seed: int) -> Graph:
    """Split ``graph``, which has the answers of one task, as ``choice`` says, instead of its own splits.

    ``choice`` is 'random:TRAIN,VAL', 'per-class:TRAIN,VAL', 'planetoid:TRAIN,VAL,TEST' or 'graphs:TRAIN/VAL/TEST'; of whole graphs, only the
    first one.
    """
    kind, _, text = choice.partition(":")
    graph, of_graphs = replace(graph, splits={}, graph_splits={}), graph.answers.unit == "graph"
    readers: dict[str, Callable[[str], Any]] = {
        "random": float,
        "per-class": _count,
        "planetoid": _count,
        # A graph may be called '3', so names come first. A position has few digits.
        "graphs": lambda names: [
            int(name)
            if name not in graph.graph_names and name.isascii() and name.isdigit() and len(name) < 19
            else name
            for name in names.split(",")
            if name
        ],
    }
    parts: list[Any] = []
    with suppress(KeyError, ValueError):
        parts = [readers[kind](part) for part in text.split("/" if kind == "graphs" else ",")]
    match kind, parts:
        case "random", [train, val]:
            split = random_graph_split if of_graphs else random_split
            return split(graph, train=train, val=val, seed=seed)
        case _ if of_graphs:
            raise InputError(
                f"split is not one of whole graphs: '{choice[:80]}' (in --split)",
                hint="Write random:0.6,0.2 (shares of the graphs).",
            )
        case "per-class", [train, val]:
            return per_class_split(graph, train=train, val=val, seed=seed)
        case "planetoid", [train, val, test]:
            return planetoid_split(graph, train=train, val=val, test=test, seed=seed)
        case "graphs", [train, val, test]:
            return graph_split(graph, train=train, val=val, test=test)
    raise InputError(
        f"split is not understood: '{choice[:80]}' (in --split)",
        hint="Write random:0.6,0.2 (shares), per-class:20,30 (vertices), "
        "planetoid:20,500,1000 (per class, then in all), or graphs:TRAIN/VAL/TEST "
        "(names or positions, comma-separated); or leave --split out for the graph's own train, val and test.",
    )


def _count(text: str) -> int:
    count = int(text)
    if count < 0:
        raise ValueError(text)
    return count
