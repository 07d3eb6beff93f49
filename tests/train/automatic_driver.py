"""Trains for an epoch in this process, on a graph whose epoch takes a gigabyte of memory.

``python -m tests.train.automatic_driver WAY RUN_DIR``; WAY is automatic, or in-memory to leave out the automatic budget.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import torch

from sagann.nn import ModelConfig
from sagann.train import TrainConfig, Trainer, trainer
from tests.runtime.memory_driver import generated
from tests.train.test_automatic import Heard

MODEL = ModelConfig(model="maxpool-gcn", layers=3, hidden=256, dropout=0.0)


def main() -> None:
    """Train."""
    torch.set_num_threads(1)
    if sys.argv[1] == "in-memory":
        trainer.automatic_budget = lambda *given, **known: None
    graph = generated(80_000, 320_000)
    graph = replace(graph, splits={"train": torch.ones(graph.num_vertices, dtype=torch.bool)})
    heard = Heard()
    Trainer(MODEL, graph, TrainConfig(epochs=1, device="cpu"), run_dir=sys.argv[2], reporter=heard).fit()
    print(*heard.messages, sep="\n")  # noqa: T201


if __name__ == "__main__":
    main()
