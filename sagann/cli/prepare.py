"""The graph of a run: opened, checked, changed as asked, and split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from sagann.cli.run_settings import DataConfig
from sagann.cli.split_choice import DEFAULT_SPLIT, apply_split
from sagann.errors import DatasetError, InputError
from sagann.graph import Graph, add_inverse_edges, symmetrise, validate_graph
from sagann.graph.normalise import normalise_features
from sagann.storage import dataset_info, load_graph
from sagann.storage.load import EMBEDDED, embedded_graph
from sagann.storage.npz_graph import describe_npz


def training_graph(config: DataConfig, *, seed: int, say: Callable[[str], None]) -> Graph:
    """Open the graph that ``config`` names, with a split to train on.

    Args:
        config: the graph, its changes and its split.
        seed: seed of a random split.
        say: is told of the default split, which nobody asked for.
    Raises:
        InputError: the graph is not valid, or cannot be changed or split as asked.
    """
    graph = open_checked(config, keep_splits=config.split is None)
    if config.split is not None:
        return apply_split(graph, config.split, seed=seed)
    if "train" in graph.splits:
        return graph
    if graph.splits:
        raise InputError(
            "the dataset has splits, but none to train on",
            value=", ".join(graph.splits),
            where=f"graph '{graph.name}'",
            fix="Ask for a split of its labelled vertices, as --split random:0.6,0.2.",
        )
    graph = apply_split(graph, DEFAULT_SPLIT, seed=seed)
    say(f"The dataset has no splits: 60 % of the labelled vertices train, 20 % validate, 20 % test (seed {seed}).")
    return graph


def open_checked(config: DataConfig, *, keep_splits: bool, num_edge_types: int = 0) -> Graph:
    """Open the graph that ``config`` names, check every value, and change it as asked.

    Args:
        config: the graph and its changes; the split is ignored.
        keep_splits: whether the dataset's own splits are kept and checked; else they are dropped.
        num_edge_types: number of edge types, with inverses, of the graph that a model was trained on; 0 without a model.
    """
    # A path would be absolute, so this is a name.
    graph = embedded_graph(config.data) if config.data in EMBEDDED else load_graph(config.data)
    if not keep_splits:
        graph = replace(graph, splits={})
    # Opening a folder does not check values, and the changes below need valid ones.
    validate_graph(graph)
    if config.undirected:
        graph = symmetrise(graph)
    if config.inverse_edges:
        # Inverses are numbered from the number of types on, so a graph that lacks the last types must count them too.
        if "type" in graph.topology.edge_data:
            graph = replace(graph, num_edge_types=max(graph.num_edge_types, num_edge_types // 2))
        graph = add_inverse_edges(graph)
    return normalise_features(graph) if config.normalise_features else graph


def class_names_of(sources: Sequence[str], num_classes: int) -> tuple[str, ...]:
    """Class names of the first dataset that has them; numbers if none has. Missing and damaged datasets are skipped."""
    for source in sources:
        with suppress(OSError, DatasetError):
            if names := stored_class_names(source, num_classes):
                return names
    return tuple(str(number) for number in range(num_classes))


def stored_class_names(source: str, num_classes: int) -> tuple[str, ...]:
    """The class names of a dataset; empty unless there are ``num_classes``."""
    if source in EMBEDDED:
        return ()
    path = Path(source)
    names: tuple[str, ...] = ()
    if path.is_dir():
        names = tuple(dataset_info(path)["class_names"])
    elif path.suffix == ".npz" and path.is_file():
        names = describe_npz(path).get("class_names", ())
    return names if len(names) == num_classes else ()
