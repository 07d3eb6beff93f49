"""The combinations of task, source of steps and placement: which train, why the others do not, and the table of README.md that says so.

python -m tests.exact.combinations prints the table; with a folder, it trains by workers, for test_combinations.py.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from typing import Any

import torch

import sagann
from sagann.errors import SagannError
from sagann.graph import random_split, sbm_graph
from sagann.nn import ModelConfig
from sagann.runtime.workers import Workers
from sagann.sampling import hold_out_links
from tests.runtime.workers.processes import run_workers

TASKS = {"vertices": "classification", "links": "link-prediction", "whole graphs": "graph-classification"}
SOURCES: dict[str, dict[str, Any]] = {
    "all at once": {},
    "`--memory`": {"memory": "64KiB"},
    "`--sample`": {"sample": (-1, -1), "batch_size": 32},
    "`--sample` and `--memory`": {"sample": (-1, -1), "batch_size": 32, "memory": "2MiB"},
}
PLACEMENTS: dict[str, dict[str, Any]] = {
    "one device": {},
    "several devices": {"device": "cuda:0,cuda:1"},
    "workers": {"workers": 2},
    "hybrid": {"devices": "host,accelerator:1"},
}

_OF_GRAPHS = "Whole graphs are trained in batches, and a batch is what is in memory at a time."
_STREAMED = "Several devices share a streamed epoch (`--memory` without `--sample`)."
_SHARED = "Hybrid training shares mini-batches (`--sample`)."


def why_not(task: str, source: str, placement: str) -> str:
    """Why a combination is refused; empty where it trains."""
    if task == "whole graphs" and source != "all at once":
        return _OF_GRAPHS
    if placement == "several devices" and source != "`--memory`":
        return _STREAMED
    if placement == "hybrid" and "--sample" not in source:
        return _SHARED
    return ""


def table() -> str:
    """The table in Markdown: a row for each task, a column for each source, the placements that train in the cells."""
    cells = {
        (task, source): ", ".join(each for each in PLACEMENTS if not why_not(task, source, each)) or "-"
        for task, source in product(TASKS, SOURCES)
    }
    rows = [
        f"| {head} | {' | '.join(each)} |"
        for head, each in [
            ("learns", SOURCES),
            *((task, [cells[task, source] for source in SOURCES]) for task in TASKS),
        ]
    ]
    reasons = dict.fromkeys(why for each in product(TASKS, SOURCES, PLACEMENTS) if (why := why_not(*each)))
    return "\n".join([rows[0], "|---|---|---|---|---|", *rows[1:], "", *reasons])


def graph_of(task: str) -> sagann.Graph:
    """A graph of a hundred vertices with answers for a task."""
    graph = sbm_graph(96, num_classes=3, average_degree=4, homophily=0.8, num_features=6, feature_noise=0.2, seed=0)
    if task == "vertices":
        return random_split(graph, train=0.6, val=0.2, seed=0)
    if task == "links":
        return hold_out_links(graph, train=0.8, val=0.1, seed=0)
    return sagann.Graph(
        topology=sagann.Topology.from_coo(src=torch.arange(96), dst=torch.arange(96) // 8 * 8, num_src=96),
        features=graph.features,
        graph_ptr=torch.arange(0, 97, 8),
        graph_labels=torch.arange(12) % 2,
        num_graph_classes=2,
        graph_splits={"train": torch.arange(12) < 8, "val": torch.arange(12) >= 8},
    )


def trained(task: str, source: str, placement: str, folder: Path, workers: Workers | None = None) -> float | str:
    """The loss after two epochs, or the error that refuses them."""
    given = {**SOURCES[source], **(PLACEMENTS[placement] if workers is None else {})}
    model = ModelConfig(model="sage", hidden=4, dropout=0.0)
    try:
        config = sagann.TrainConfig(
            **{"device": "cpu", **given},
            task=TASKS[task],
            epochs=2,
            spill=str(folder) if "memory" in given else None,
        )
        trainer = sagann.Trainer(model, graph_of(task), config, progress=False, workers=workers)
        return trainer.fit().history[-1].loss
    except SagannError as error:
        return str(error)


def main(folder: Path) -> None:
    torch.set_num_threads(1)

    def work(workers: Workers) -> None:
        found = {(*each, "workers"): trained(*each, "workers", folder, workers) for each in product(TASKS, SOURCES)}
        if workers.is_first:
            torch.save(found, folder / "workers.pt")

    run_workers(work, 2)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        sys.stdout.write(table() + "\n")
