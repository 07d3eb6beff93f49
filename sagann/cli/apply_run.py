"""The work of ``sagann evaluate``, ``predict`` and ``embed``: a run folder and a graph in, a table or a file out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from sagann.byte_size import format_bytes
from sagann.cli.apply import Opening
from sagann.cli.link_file import check_links, read_links
from sagann.cli.options import Shared
from sagann.cli.prepare import LINK_SHARES, apply_split, open_checked, training_graph, with_columns, with_held_out
from sagann.cli.result_file import write_embeddings, write_links, write_predictions, write_values
from sagann.cli.run_settings import DataConfig, RunSettings, absolute_path, merge, read_tables, settings_of
from sagann.errors import CheckpointError, InputError
from sagann.graph import Graph, original_order
from sagann.graph.task import without_others
from sagann.report.tables import metrics_table
from sagann.report.terminal import Terminal
from sagann.storage.whole_files import whole_files
from sagann.train import Predictor, load_run, read_run
from sagann.train.identity import graph_difference
from sagann.train.run_folder import CONFIG_FILE


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedRun:
    """A run folder whose model is open, and the graph that it is applied to."""

    run_dir: Path
    "The run folder."
    settings: RunSettings
    "Settings of the training."
    predictor: Predictor
    "The model."
    data: DataConfig
    "The graph: the run's own, or another one."
    terminal: Terminal
    "Where results and notes are written."

    def evaluate(self, split: str | None) -> None:
        """Print the metrics of each split; None for the splits of the run or of the other dataset."""
        seed = self.settings.train.seed
        of_links = self.predictor.contract.of_links
        if split is None and self.data is self.settings.data:
            with self.predictor.large_arrays():
                graph = training_graph(
                    self.data, task=self.predictor.contract.task, seed=seed, say=self.terminal.say
                )
            self._note_change(graph)
        elif of_links:
            own = self.settings.data.split
            is_same_data = self.data.data == self.settings.data.data
            if is_same_data and (split or own or LINK_SHARES) != (own or LINK_SHARES):
                self.terminal.say(
                    "Other edges are held out than in training: the run has learned some of the links to measure."
                )
            graph = with_held_out(self._graph(), split or own, seed=seed, say=self.terminal.say)
        else:
            graph = with_columns(self._graph(keep_splits=split is None), self.settings.data.targets)
            graph = graph if split is None else apply_split(graph, split, seed=seed)
        self._say_streamed()
        title = f"{self.settings.model.model} on {graph.name}"
        self.terminal.show(metrics_table(self.predictor.evaluate(graph), title=title))

    def predict(self, out: Path, links: Path | None) -> None:
        """Write class and probability, or the predicted values, of every vertex, or graph, or the probability of every link of a file, to ``out``."""
        contract = self.predictor.contract
        if contract.of_links != (links is not None):
            raise InputError(
                "pairs of vertices are for a model of links",
                value=f"{'no --links' if links is None else '--links'}, the task is {contract.task}",
                where="sagann predict",
                fix="Name a table of pairs with --links." if contract.of_links else "Leave --links out.",
            )
        graph = self._graph()
        self._say_streamed()
        if links is not None:
            self._predict_links(graph, out, links)
            return
        of_graphs, noun = contract.of_graphs, contract.noun
        order = torch.arange(graph.num_graphs) if of_graphs else original_order(graph)
        if contract.kind == "regression":
            write_values(out, self.predictor.predict(graph).float(), order, of=noun)
        else:
            names = read_run(self.run_dir).class_names or [str(number) for number in range(contract.num_classes)]
            probabilities = self.predictor.predict(graph, probabilities=True)
            write_predictions(out, probabilities.float(), names, order, of=noun, multi_label=contract.multi_label)
        self.terminal.show(f"Predictions of {len(order)} {'graphs' if of_graphs else 'vertices'} written to {out}")

    def _predict_links(self, graph: Graph, out: Path, links: Path) -> None:
        num_edge_types = self.predictor.contract.num_edge_types
        pairs = read_links(links, with_types=num_edge_types > 0)
        order = original_order(graph)
        check_links(pairs, graph.num_vertices, num_edge_types, where=str(links))
        ends = (order[pairs["src"]], order[pairs["dst"]])
        types = (pairs["type"],) if "type" in pairs else ()
        found = self.predictor.predict(graph, probabilities=True, links=(*ends, *types))
        write_links(out, pairs, found.float())
        self.terminal.show(f"Probabilities of {len(found)} links written to {out}")

    def embed(self, out: Path) -> None:
        """Write the embedding of every vertex to ``out``."""
        graph = self._graph()
        self._say_streamed()
        embeddings = self.predictor.embed(graph).float()
        write_embeddings(out, embeddings, original_order(graph))
        rows, width = embeddings.shape
        self.terminal.show(f"Embeddings of {rows} vertices, {width} wide, written to {out}")

    def _graph(self, *, keep_splits: bool = False) -> Graph:
        num_edge_types = self.predictor.contract.num_edge_types
        # Predictions need no splits, so bad splits are no reason to refuse.
        with self.predictor.large_arrays():
            graph = open_checked(self.data, keep_splits=keep_splits, num_edge_types=num_edge_types)
        graph = without_others(graph, self.predictor.contract.task)
        # A run on links knows the edges that it kept, not all of them.
        if self.data is self.settings.data and not self.predictor.contract.of_links:
            self._note_change(with_columns(graph, self.data.targets))
        return graph

    def _note_change(self, graph: Graph) -> None:
        """Say whether the run's own graph, with the answers that were learned, is another one now."""
        with whole_files(graph):
            changed = graph_difference(read_run(self.run_dir).graph, graph)
        if changed:
            self.terminal.say(
                f"The dataset has changed since the run was trained on it ({changed}); it is taken as it is now."
            )

    def _say_streamed(self) -> None:
        streaming = self.predictor.streaming
        if streaming is not None:
            self.terminal.say(f"The model is streamed within {format_bytes(streaming.memory_bytes)}.")
            streaming.warn(self.terminal.say)


@contextmanager
def opened(opening: Opening, shared: Shared) -> Iterator[TrainedRun]:
    """Open a run folder and its model; files that the model spills are removed at the end."""
    if opening.run is None:
        raise InputError(
            "no run",
            value="neither a run folder nor --run",
            where="the command line",
            fix="Name the folder that 'sagann train' wrote, as in: sagann evaluate runs/demo-gcn",
        )
    run_dir = Path(opening.run)
    file = run_dir / CONFIG_FILE
    if not file.is_file():
        raise CheckpointError(
            "not a run folder",
            value=f"there is no {CONFIG_FILE}",
            where=str(run_dir),
            fix="Name the folder of a run that 'sagann train' wrote; open others with sagann.load_run.",
        )
    settings = settings_of(merge(read_tables(file), {}), stored=True)
    if opening.model is not None:
        shared.add_user_file(opening.model)
    predictor = load_run(
        run_dir, model=opening.model, device=opening.device, memory=opening.memory, spill=opening.spill
    )
    data = settings.data
    if opening.data is not None:
        data = replace(data, data=absolute_path(opening.data), split=None)
    terminal = shared.terminal()
    try:
        yield TrainedRun(run_dir=run_dir, settings=settings, predictor=predictor, data=data, terminal=terminal)
    finally:
        predictor.release()
