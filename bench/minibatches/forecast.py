"""Forecasts of epochs of mini-batches against epochs: ``python -m bench.minibatches.forecast``.

In each round a forecast is made, as ``sagann plan --sample`` makes it, and then epochs are trained. The first epoch of a run compiles and
does not count; the others' median is "measured". A ratio is the median over the rounds of forecast over measured. Both see the same
machine, but not at the same moment: what other programs do in between is in the ratio.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from bench.epochs.graphs import graph_of, stored_graph
from bench.pages import head, parser_of, row
from sagann import MiniBatches, ModelConfig, TrainConfig, Trainer
from sagann.graph import Graph
from sagann.graph.rows import row_arrays
from sagann.train.rehearsals import SampledForecast

COLUMNS = "graph | model | batches | forecast, s | measured, s | seconds, forecast / measured | bytes, forecast / measured | bottleneck"


class Round(NamedTuple):
    forecast: SampledForecast
    epoch_s: float
    "Median seconds of the epochs."
    epoch_bytes: float
    "Mean bytes of features of the epochs."


def main() -> None:
    options = _options()
    print(
        f"Fanouts {', '.join(map(str, options.sample))}; batches of {options.batch_size}; hidden {options.hidden}; {options.rounds} rounds of "
        f"a forecast and {options.epochs} epochs.\n"
    )
    print(head(COLUMNS, words=("model", "bottleneck")), flush=True)
    for name in options.graphs:
        graph = graph_of(stored_graph(name))
        for model in options.models:
            print(row_of(name, model, measure(graph, model, options)), flush=True)


def _options() -> argparse.Namespace:
    return parser_of(
        __doc__,
        {"batch_size": 256, "hidden": 64, "rounds": 3},
        graphs=(["cora", "pubmed", "reddit-small"], "graphs"),
        models=(["sage", "gat"], "models"),
        sample=([25, 10], "fanouts"),
        epochs=(6, "epochs of a round, without the first one"),
    ).parse_args()


def measure(graph: Graph, model: str, options: argparse.Namespace) -> list[Round]:
    """Rounds of a forecast and of epochs."""
    config = TrainConfig(
        sample=tuple(options.sample),
        batch_size=options.batch_size,
        epochs=options.epochs + 1,
        eval_every=options.epochs + 1,
        device="cpu",
    )
    named = ModelConfig(model=model, layers=len(options.sample), hidden=options.hidden)
    rounds = []
    for _ in range(options.rounds):
        trainer = Trainer(named, graph, config, validate=False, progress=False)
        forecast = trainer.foretell()
        history = trainer.fit().history[1:]
        rounds.append(
            Round(
                forecast=forecast,
                epoch_s=median(record.epoch_s for record in history),
                epoch_bytes=_bytes_of(graph, trainer, config) / options.epochs,
            )
        )
    return rounds


def _bytes_of(graph: Graph, trainer: Trainer, config: TrainConfig) -> int:
    """Bytes of features of all epochs but the first one, which are sampled again."""
    assert config.sample is not None
    prepared = getattr(trainer.model, "prepare", lambda graph: graph)(graph)
    minibatches = MiniBatches(prepared, fanouts=config.sample, batch_size=config.seeds_per_batch, seed=config.seed)
    num_bytes = 0
    for epoch in range(2, config.epochs + 1):
        with minibatches.batches(epoch) as batches:
            num_bytes += sum(array.nbytes for batch in batches for array in row_arrays(batch.features))
    return num_bytes


def row_of(graph: str, model: str, rounds: Sequence[Round]) -> str:
    seconds = median(each.forecast.seconds / each.epoch_s for each in rounds)
    num_bytes = median(each.forecast.num_bytes / each.epoch_bytes for each in rounds)
    foretold_s, measured_s = (
        median(each.forecast.seconds for each in rounds),
        median(each.epoch_s for each in rounds),
    )
    cells = [graph, model, rounds[-1].forecast.num_batches, f"{foretold_s:.3g}", f"{measured_s:.3g}"]
    return row([*cells, f"{seconds:.2f}", f"{num_bytes:.3f}", rounds[-1].forecast.bottleneck])


if __name__ == "__main__":
    main()
