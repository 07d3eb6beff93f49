"""The work of ``sagann evaluate``, ``predict`` and ``embed``: a run folder and a graph in, a table or a file out.

Several workers each compute the rows of their part. Rows travel to the first worker alone, which reports and writes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sagann.byte_size import format_bytes
from sagann.cli.commands import Opening
from sagann.cli.options import Given, Shared, options_from
from sagann.cli.prepare import apply_split, link_split, open_checked, training_graph, with_columns, with_held_out
from sagann.cli.result_file import write_classes, write_columns, write_rows, write_values
from sagann.cli.run_settings import absolute_path, merge, read_tables, require_nothing_of_workers, settings_of
from sagann.config import WORKERS, DataConfig, RunConfig
from sagann.errors import DatasetError, InputError, shown
from sagann.graph import Graph, original_order
from sagann.graph.checks import UNITS, check_ids, numbered
from sagann.graph.graph import without_others
from sagann.processes import is_worker
from sagann.report.tables import metrics_table
from sagann.report.terminal import Terminal
from sagann.runtime.team import SOLO, Team
from sagann.storage.load import EMBEDDED
from sagann.storage.tables import column_name, end_columns, named_column, open_table
from sagann.train import Predictor, Run, load_run, read_run
from sagann.train.identity import graph_difference, require_agreement, require_same
from sagann.train.run_folder import CONFIG_FILE
from sagann.train.runner import PreparedGraph, large_arrays


@dataclass(frozen=True, slots=True)
class TrainedRun:
    """A run folder whose model is open, and the graph that it is applied to."""

    run: Run
    "What the run folder says of the run."
    settings: RunConfig
    "Settings of the training."
    predictor: Predictor
    "The model."
    data: DataConfig
    "The graph: the run's own, or another one."
    terminal: Terminal
    "Where results and notes are written."
    workers: Team
    "The workers that divide the graph among them, of which the first one gets the results, reports and writes."

    def evaluate(self, split: str | None) -> None:
        """Print the metrics of each split; None for the splits of the run or of the other dataset."""
        contract, seed, say = self.predictor.contract, self.settings.train.seed, self.terminal.say
        if split is None and self.data is self.settings.data:
            with large_arrays(self.predictor.streaming):
                graph = training_graph(
                    self.data, task=contract.task, seed=seed, say=say, check=self.workers.is_first
                )
            self._note_change(graph)
        elif contract.unit == "link":
            graph, own = self._graph(), self.settings.data.split
            is_same_data = self.data.data == self.settings.data.data
            if is_same_data and link_split(graph, split or own) != link_split(graph, own):
                say("Other edges are held out than in training: the run has learned some of the links to measure.")
            graph = with_held_out(graph, split or own, seed=seed, say=say)
        else:
            graph = with_columns(self._graph(keep_splits=split is None), self.settings.data.targets)
            graph = graph if split is None else apply_split(graph, split, seed=seed)
        metrics = self.predictor.evaluate(self._divided(graph, "evaluate"))
        if self.workers.is_first:
            self.terminal.show(metrics_table(metrics, title=f"{self.run.model} on {graph.name}"))

    def predict(self, out: Path, links: Path | None) -> None:
        """Write class and probability, or the predicted values, of every vertex, or graph, or the probability of every link of a file, to ``out``."""
        contract = self.predictor.contract
        if contract.unit == "link" and links is None:
            raise InputError(
                f"there are no links to score: no --links, and the task is {contract.task} (in sagann predict)",
                hint="Name a table of pairs of vertices with --links.",
            )
        graph = self._graph()
        if links is not None:
            self._predict_links(graph, out, links)
            return
        unit, is_regression = contract.unit, contract.kind == "regression"
        found = self.predictor.predict(self._divided(graph, "predict"), probabilities=not is_regression).float()
        if not self.workers.is_first:
            return
        order = torch.arange(graph.num_graphs) if unit == "graph" else original_order(graph)
        if is_regression:
            names = ["prediction"]
            if found.ndim > 1:
                names = [f"prediction_{number}" for number in range(found.shape[1])]
            write_values(out, found, names, order, of=unit)
        else:
            names = list(self.run.class_names or map(str, range(contract.num_classes)))
            write_classes(out, found, names, order, of=unit, multi_label=contract.kind == "multi-label")
        self.terminal.show(f"Predictions of {len(order)} {UNITS[unit]} written to {out}")

    def _predict_links(self, graph: Graph, out: Path, links: Path) -> None:
        pairs = read_links(links, with_types=self.predictor.contract.num_edge_types > 0)
        for name in ("src", "dst"):
            check_ids(pairs[name], graph.num_vertices, "vertex", where=numbered(f"{links}, column {name}", "pair"))
        order = original_order(graph)
        given = tuple(each if name == "type" else order[each] for name, each in pairs.items())
        found = self.predictor.predict(self._divided(graph, "predict"), probabilities=True, links=given).float()
        if not self.workers.is_first:
            return
        if out.suffix == ".npy":
            write_rows(out, found)
        else:
            write_columns(out, {name: each.numpy() for name, each in {**pairs, "probability": found}.items()})
        self.terminal.show(f"Probabilities of {len(found)} links written to {out}")

    def embed(self, out: Path) -> None:
        """Write the embedding of every vertex to ``out``."""
        graph = self._graph()
        embeddings = self.predictor.embed(self._divided(graph, "embed")).float()
        if not self.workers.is_first:
            return
        write_rows(out, embeddings, original_order(graph))
        rows, width = embeddings.shape
        self.terminal.show(f"Embeddings of {rows} vertices, {width} wide, written to {out}")

    def _graph(self, *, keep_splits: bool = False) -> Graph:
        num_edge_types = self.predictor.contract.num_edge_types
        # Predictions need no splits, so bad splits are no reason to refuse.
        with large_arrays(self.predictor.streaming):
            graph = open_checked(
                self.data, keep_splits=keep_splits, num_edge_types=num_edge_types, check=self.workers.is_first
            )
        graph = without_others(graph, self.predictor.contract.task)
        # A run on links knows the edges that it kept, not all of them.
        if self.data is self.settings.data and self.predictor.contract.unit != "link":
            self._note_change(with_columns(graph, self.data.targets))
        return graph

    def _note_change(self, graph: Graph) -> None:
        """Say whether the run's own graph, with the answers that were learned, is another one now."""
        if self.workers.is_first and (changed := graph_difference(self.run.graph, graph)):
            self.terminal.say(
                f"The dataset has changed since the run was trained on it ({changed}); it is taken as it is now."
            )

    def _divided(self, graph: Graph, command: str) -> Graph | PreparedGraph:
        """The graph, or of several workers this one's part of it, after all agree on what they do; whether the model is streamed is said."""
        workers, streaming = self.workers, self.predictor.streaming
        if streaming is not None:
            self.terminal.say(f"The model is streamed within {format_bytes(streaming.memory_bytes)}.")
            streaming.warn(self.terminal.say)
        if workers.size == 1:
            return graph
        memory_bytes = None if streaming is None else streaming.memory_bytes
        require_same(workers, {"command": command, "memory_bytes": memory_bytes})
        require_agreement(workers, self.run.train_config, graph, self.predictor, None)
        # The first worker has checked the values.
        return self.predictor.prepare(graph, validate=False)


def use_run(given: Given, shared: Shared, use: Callable[[TrainedRun], None]) -> int:
    """Open a run folder and its model, use it at every worker, and return the exit code. With several workers, start them; or be one of them."""
    opening = options_from(Opening, given)
    if opening.run is None:
        raise InputError(
            "no run: neither a run folder nor --run (in the command line)",
            hint="Name the folder that 'sagann train' wrote, as in: sagann evaluate runs/demo-gcn",
        )
    run_dir = Path(opening.run)
    num_workers, timeout_s, balance = (each.checked(given.get(each.name, each.default)) for each in WORKERS)
    if not is_worker() and num_workers == 1:
        require_nothing_of_workers(given)
        _use(opening, run_dir, shared, use)
        return 0
    contract = read_run(run_dir).contract
    if contract.unit == "graph":
        raise InputError(
            f"several workers divide one graph, and give its vertices rows: the task is {contract.task} (in {run_dir})",
            hint="Leave workers out (--workers 1).",
        )
    from sagann.cli.launch import joined, launch_workers
    from sagann.runtime.workers.carriers import device_of_worker, left_alone, name_for_workers

    if is_worker():
        with joined(shared, given, timeout_s=timeout_s, balance=balance) as workers:
            _use(opening, run_dir, shared, use, workers)
        return 0
    # What any worker would refuse is refused here, once.
    name = name_for_workers(opening.device, num_local=num_workers)
    device = device_of_worker(name, local_rank=0, num_local=num_workers)
    if said := left_alone(opening.device, device):
        shared.terminal().say(said)
    _opened(replace(opening, device="cpu"), run_dir)
    if balance == "cost":
        from sagann.train.balancer import learned_costs

        learned_costs(run_dir)
    return launch_workers(shared.arguments, num_workers, run_dir=run_dir, again="Start the command again.")


def _use(
    opening: Opening, run_dir: Path, shared: Shared, use: Callable[[TrainedRun], None], workers: Team = SOLO
) -> None:
    shared.load_kernels()
    settings = _settings(run_dir, has_data=opening.data is not None)
    predictor, terminal = _opened(opening, run_dir, workers), shared.terminal()
    shared.load_compiler()
    data = settings.data
    if opening.data is not None:
        data = replace(data, data=absolute_path(opening.data), split=None)
    if predictor.learned is not None and (said := predictor.learned.unknown_text(workers.size)):
        terminal.say(said)
    try:
        use(TrainedRun(read_run(run_dir), settings, predictor, data, terminal, workers))
    finally:
        predictor.release()


def _settings(run_dir: Path, *, has_data: bool) -> RunConfig:
    """The settings of a run. One of a Trainer in Python has the model, the training and the name of the graph."""
    file = run_dir / CONFIG_FILE
    if file.is_file():
        return settings_of(merge(read_tables(file), {}), stored=True)
    run = read_run(run_dir)
    if not (has_data or run.data in EMBEDDED or Path(run.data).exists()):
        raise InputError(
            "the run does not say where its graph is: a Trainer in Python has trained on a graph named "
            f"{shown(run.data)} (in {run_dir})",
            hint="Name the dataset: --data PATH.",
        )
    return settings_of({"data": {"data": run.data}, "model": {}, "train": run.train_config.to_json()}, stored=True)


def _opened(opening: Opening, run_dir: Path, workers: Team = SOLO) -> Predictor:
    return load_run(
        run_dir,
        model=opening.model,
        device=opening.device,
        memory=opening.memory,
        spill=opening.spill,
        workers=workers,
    )


def read_links(path: Path, *, with_types: bool) -> dict[str, Tensor]:
    """The columns 'src', 'dst' and, with types, 'type' of a table, by name or position: int64 [n] each."""
    table = open_table(path)
    wanted = ("src", "dst", "type") if with_types else ("src", "dst")
    names = end_columns(table)
    if with_types:
        by_name = "type" in table.names or named_column(table, "src") is not None
        names.append(column_name(table, "type" if by_name else 2))
    batches = [columns for _, columns in table.batches(names, ["int64"] * len(names))]
    if not batches:
        raise DatasetError(
            f"there is no pair to score: the table has no row (in {path})",
            hint="Give a row for each pair: source, destination" + (", type." if with_types else "."),
        )
    return {
        name: torch.from_numpy(np.concatenate(columns))
        for name, columns in zip(wanted, zip(*batches, strict=True), strict=True)
    }
