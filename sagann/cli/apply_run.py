"""The work of ``sagann evaluate``, ``predict`` and ``embed``: a run folder and a graph in, a table or a file out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from sagann.byte_size import format_bytes
from sagann.cli.options import Shared
from sagann.cli.prepare import class_names_of, open_checked, training_graph
from sagann.cli.result_file import check_target, write_embeddings, write_predictions
from sagann.cli.run_settings import DataConfig, RunSettings, absolute_path, read_tables, settings_of
from sagann.cli.split_choice import apply_split
from sagann.errors import CheckpointError
from sagann.graph import Graph
from sagann.report.metrics_table import metrics_table
from sagann.report.terminal import Terminal
from sagann.train import Predictor, load_run, read_run
from sagann.train.identity import graph_difference
from sagann.train.run_folder import CONFIG_FILE


@dataclass(frozen=True, kw_only=True, slots=True)
class Opening:
    """How a run is reopened."""

    model: str | None
    "The run's own model file."
    device: str
    "Where to compute."
    memory: str | None = None
    "The budget to stream it within."
    spill: Path | None = None
    "Where to spill what does not fit."


def evaluate_run(run_dir: Path, opening: Opening, *, data: str | None, split: str | None, shared: Shared) -> None:
    """Print the metrics of a run's model, per split of its graph or of ``data``."""
    terminal = Terminal(quiet=shared.quiet)
    settings = _settings(run_dir, opening, shared)
    with _opened(run_dir, opening, terminal) as predictor:
        seed = settings.train.seed
        with predictor.large_arrays():
            if split is None and data is None:
                graph = training_graph(settings.data, seed=seed, say=terminal.say)
                _note_change(run_dir, graph, terminal)
            else:
                graph = open_checked(
                    _data(settings, data),
                    keep_splits=split is None,
                    num_edge_types=predictor.contract.num_edge_types,
                )
                graph = graph if split is None else apply_split(graph, split, seed=seed)
        _say_streamed(predictor, terminal)
        metrics = predictor.evaluate(graph)
    terminal.show(metrics_table(metrics, title=f"{settings.model.model} on {graph.name}"))


def predict_run(
    run_dir: Path, opening: Opening, *, data: str | None, out: Path, overwrite: bool, shared: Shared
) -> None:
    """Write class and probability of every vertex to ``out``."""
    check_target(out, (".csv", ".parquet", ".npy"), overwrite=overwrite)
    terminal = Terminal(quiet=shared.quiet)
    settings = _settings(run_dir, opening, shared)
    with _opened(run_dir, opening, terminal) as predictor:
        graph = _graph(run_dir, settings, data, predictor, terminal)
        # The dataset that the model was trained on comes first: of a run from before runs kept the names.
        names = read_run(run_dir).class_names or class_names_of(
            [settings.data.data, _data(settings, data).data], predictor.contract.num_classes
        )
        _say_streamed(predictor, terminal)
        probabilities = predictor.predict(graph, probabilities=True)
        write_predictions(out, probabilities.float(), names, multi_label=predictor.contract.multi_label)
    terminal.show(f"Predictions of {graph.num_vertices} vertices written to {out}")


def embed_run(
    run_dir: Path, opening: Opening, *, data: str | None, out: Path, overwrite: bool, shared: Shared
) -> None:
    """Write the embedding of every vertex to ``out``."""
    check_target(out, (".npy",), overwrite=overwrite)
    terminal = Terminal(quiet=shared.quiet)
    settings = _settings(run_dir, opening, shared)
    with _opened(run_dir, opening, terminal) as predictor:
        graph = _graph(run_dir, settings, data, predictor, terminal)
        _say_streamed(predictor, terminal)
        embeddings = predictor.embed(graph).float()
    write_embeddings(out, embeddings)
    rows, width = embeddings.shape
    terminal.show(f"Embeddings of {rows} vertices, {width} wide, written to {out}")


@contextmanager
def _opened(run_dir: Path, opening: Opening, terminal: Terminal) -> Iterator[Predictor]:
    """The model; what it spills is removed at the end."""
    predictor = load_run(
        run_dir, model=opening.model, device=opening.device, memory=opening.memory, spill=opening.spill
    )
    try:
        yield predictor
    finally:
        predictor.release()


def _say_streamed(predictor: Predictor, terminal: Terminal) -> None:
    streaming = predictor.streaming
    if streaming is not None:
        terminal.say(f"The model is streamed within {format_bytes(streaming.memory_bytes)}.")
        streaming.warn(terminal.say)


def _graph(
    run_dir: Path, settings: RunSettings, data: str | None, predictor: Predictor, terminal: Terminal
) -> Graph:
    """The run's graph, or another one; splits play no part, so bad ones are no reason to refuse."""
    num_edge_types = predictor.contract.num_edge_types
    with predictor.large_arrays():
        graph = open_checked(_data(settings, data), keep_splits=False, num_edge_types=num_edge_types)
    if data is None:
        _note_change(run_dir, graph, terminal)
    return graph


def _note_change(run_dir: Path, graph: Graph, terminal: Terminal) -> None:
    """Say so where the run's own dataset is no longer what the model was trained on."""
    if changed := graph_difference(read_run(run_dir).graph, graph):
        terminal.say(
            f"The dataset has changed since the run was trained on it ({changed}); it is taken as it is now."
        )


def _settings(run_dir: Path, opening: Opening, shared: Shared) -> RunSettings:
    file = run_dir / CONFIG_FILE
    if not file.is_file():
        raise CheckpointError(
            "not a run folder",
            value=f"there is no {CONFIG_FILE}",
            where=str(run_dir),
            fix="Name the folder of a run that 'sagann train' wrote; open others with sagann.load_run.",
        )
    settings = settings_of(read_tables(file), stored=True)
    if opening.model is not None and ".py:" in opening.model:
        # As Python names the file of a frame.
        shared.user_files.add(str(Path(opening.model.rpartition(":")[0]).absolute()))
    return settings


def _data(settings: RunSettings, data: str | None) -> DataConfig:
    return settings.data if data is None else replace(settings.data, data=absolute_path(data), split=None)
