"""The work of ``sagann evaluate``, ``predict`` and ``embed``: a run folder and a graph in, a table or a file out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sagann.cli.options import Shared
from sagann.cli.prepare import class_names_of, open_checked, training_graph
from sagann.cli.result_file import check_target, write_embeddings, write_predictions
from sagann.cli.run_settings import CONFIG_FILE, DataConfig, RunSettings, absolute_path, read_tables, settings_of
from sagann.cli.split_choice import apply_split
from sagann.errors import CheckpointError
from sagann.graph import Graph
from sagann.report.metrics_table import metrics_table
from sagann.report.terminal import Terminal
from sagann.train import Predictor, load_run, read_run
from sagann.train.identity import graph_difference


def evaluate_run(
    run_dir: Path, *, data: str | None, split: str | None, model: str | None, device: str, shared: Shared
) -> None:
    """Print the metrics of a run's model, per split of its graph or of ``data``."""
    terminal = Terminal(quiet=shared.quiet)
    settings = _settings(run_dir, model, shared)
    predictor = load_run(run_dir, model=model, device=device)
    seed = settings.train.seed
    if split is None and data is None:
        graph = training_graph(settings.data, seed=seed, say=terminal.say)
        _note_change(run_dir, graph, terminal)
    else:
        graph = open_checked(
            _data(settings, data), keep_splits=split is None, num_edge_types=predictor.contract.num_edge_types
        )
        graph = graph if split is None else apply_split(graph, split, seed=seed)
    metrics = predictor.evaluate(graph)
    terminal.show(metrics_table(metrics, title=f"{settings.model.model} on {graph.name}"))


def predict_run(
    run_dir: Path, *, data: str | None, out: Path, overwrite: bool, model: str | None, device: str, shared: Shared
) -> None:
    """Write class and probability of every vertex to ``out``."""
    check_target(out, (".csv", ".parquet", ".npy"), overwrite=overwrite)
    predictor, graph, names = _load(run_dir, data, model, device, shared)
    probabilities = predictor.predict(graph, probabilities=True)
    write_predictions(out, probabilities.float(), names, multi_label=predictor.contract.multi_label)
    Terminal(quiet=shared.quiet).show(f"Predictions of {graph.num_vertices} vertices written to {out}")


def embed_run(
    run_dir: Path, *, data: str | None, out: Path, overwrite: bool, model: str | None, device: str, shared: Shared
) -> None:
    """Write the embedding of every vertex to ``out``."""
    check_target(out, (".npy",), overwrite=overwrite)
    predictor, graph, _ = _load(run_dir, data, model, device, shared)
    embeddings = predictor.embed(graph).float()
    write_embeddings(out, embeddings)
    rows, width = embeddings.shape
    Terminal(quiet=shared.quiet).show(f"Embeddings of {rows} vertices, {width} wide, written to {out}")


def _load(
    run_dir: Path, data: str | None, model: str | None, device: str, shared: Shared
) -> tuple[Predictor, Graph, Sequence[str]]:
    """The model, the graph, and names for the classes."""
    settings = _settings(run_dir, model, shared)
    config = _data(settings, data)
    predictor = load_run(run_dir, model=model, device=device)
    # Splits play no part, so bad ones are no reason to refuse.
    graph = open_checked(config, keep_splits=False, num_edge_types=predictor.contract.num_edge_types)
    if data is None:
        _note_change(run_dir, graph, Terminal(quiet=shared.quiet))
    # The dataset that the model was trained on comes first: of a run from before runs kept the names.
    names = read_run(run_dir).class_names or class_names_of(
        [settings.data.data, config.data], predictor.contract.num_classes
    )
    return predictor, graph, names


def _note_change(run_dir: Path, graph: Graph, terminal: Terminal) -> None:
    """Say so where the run's own dataset is no longer what the model was trained on."""
    if changed := graph_difference(read_run(run_dir).graph, graph):
        terminal.say(
            f"The dataset has changed since the run was trained on it ({changed}); it is taken as it is now."
        )


def _settings(run_dir: Path, model: str | None, shared: Shared) -> RunSettings:
    file = run_dir / CONFIG_FILE
    if not file.is_file():
        raise CheckpointError(
            "not a run folder",
            value=f"there is no {CONFIG_FILE}",
            where=str(run_dir),
            fix="Name the folder of a run that 'sagann train' wrote; open others with sagann.load_run.",
        )
    settings = settings_of(read_tables(file), stored=True)
    if model is not None and ".py:" in model:
        # As Python names the file of a frame.
        shared.user_files.add(str(Path(model.rpartition(":")[0]).absolute()))
    return settings


def _data(settings: RunSettings, data: str | None) -> DataConfig:
    return settings.data if data is None else replace(settings.data, data=absolute_path(data), split=None)
