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
        config: which graph, and what to do to it.
        seed: of a split that is drawn.
        say: is told of a split that nobody asked for.
    Raises:
        InputError: the graph is bad, or cannot be changed or split as asked.
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
        config: which graph; its split is not looked at.
        keep_splits: whether the dataset's own splits are wanted; else they may be anything.
        num_edge_types: of the graph that a model was trained on, as it was changed; 0 where there is no model yet.
    """
    # A path would be absolute.
    graph = embedded_graph(config.data) if config.data in EMBEDDED else load_graph(config.data)
    if not keep_splits:
        graph = replace(graph, splits={})
    # Before anything is computed on it: a folder is opened without a look at its values.
    validate_graph(graph)
    if config.undirected:
        graph = symmetrise(graph)
    if config.inverse_edges:
        # Inverses are numbered from the number of types on: a graph without the last ones has the model's all the same.
        if "type" in graph.topology.edge_data:
            graph = replace(graph, num_edge_types=max(graph.num_edge_types, num_edge_types // 2))
        graph = add_inverse_edges(graph)
    return normalise_features(graph) if config.normalise_features else graph


def class_names_of(sources: Sequence[str], num_classes: int) -> tuple[str, ...]:
    """Names of the classes, of the first dataset that has any; their numbers where none has.

    A dataset may be gone, damaged, or somebody else's by now.
    """
    for source in sources:
        with suppress(OSError, DatasetError):
            if names := stored_class_names(source, num_classes):
                return names
    return tuple(str(number) for number in range(num_classes))


def stored_class_names(source: str, num_classes: int) -> tuple[str, ...]:
    """The names that a dataset has for its classes; empty where it has none, or not for ``num_classes``."""
    if source in EMBEDDED:
        return ()
    path = Path(source)
    names: tuple[str, ...] = ()
    if path.is_dir():
        names = tuple(dataset_info(path)["class_names"])
    elif path.suffix == ".npz" and path.is_file():
        names = describe_npz(path).class_names
    return names if len(names) == num_classes else ()
