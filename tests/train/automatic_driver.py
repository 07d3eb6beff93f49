"""Trains for an epoch in this process, on a graph whose epoch takes half a gigabyte of memory.

``python -m tests.train.automatic_driver WAY RUN_DIR [DATA]``. WAY is automatic; in-memory to leave out the automatic budget; or
prepared-in-memory to have no array of the prepared graph in files. DATA is a dataset to train on instead.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import torch

from sagann.nn import ModelConfig
from sagann.storage import load_graph
from sagann.train import TrainConfig, Trainer, trainer
from tests.runtime.memory_driver import generated
from tests.train.runs import Heard

MOST_LABELLED = 40_000
MODEL = ModelConfig(model="maxpool-gcn", layers=3, hidden=256, dropout=0.0)


def main() -> None:
    """Train."""
    torch.set_num_threads(1)
    if sys.argv[1] == "in-memory":
        trainer.automatic_budget = lambda *given, **known: None
    if sys.argv[1] == "prepared-in-memory":
        trainer.bytes_in_files = lambda *given: 0
    graph, model = generated(40_000, 160_000), MODEL
    if len(sys.argv) == 4:
        # The model takes little: it is the graph that is large.
        graph, model = load_graph(sys.argv[3]), replace(MODEL, layers=2, hidden=8)
    # Few enough that measuring them takes little.
    graph = replace(graph, splits={"train": torch.arange(graph.num_vertices) < MOST_LABELLED})
    heard = Heard()
    Trainer(model, graph, TrainConfig(epochs=1, device="cpu"), run_dir=sys.argv[2], reporter=heard).fit()
    print(*heard.messages, sep="\n")  # noqa: T201


if __name__ == "__main__":
    main()
